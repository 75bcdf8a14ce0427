package gateway

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// parsePosition reads the position of a request.
func parsePosition(text string, base journal.Position) (journal.Position, error) {
	p, err := base.Parse(text)
	if err != nil {
		return nil, badRequest(CodeBadParameter, "%s", err.Error())
	}
	return p, nil
}

// getEvents streams the namespace's events: from a position, or from now on.
func (g *Gateway) getEvents(w http.ResponseWriter, r *http.Request) error {
	values, err := parameters(r, "state", "type", "from_seq")
	if err != nil {
		return err
	}
	want, err := g.parseWanted(values)
	if err != nil {
		return err
	}
	if want.namespace, err = g.checkNamespace(namespace(r)); err != nil {
		return err
	}
	at, err := g.feedStart(r, values)
	if err != nil {
		return err
	}
	if r.Method == http.MethodHead {
		streamHeader(w)
		return nil
	}
	done, err := g.streams.open(r)
	if err != nil {
		return err
	}
	defer done()
	ctx, stop := g.streaming(r)
	defer stop()
	records := make(chan shardRecord, readAhead)
	ended := make(chan struct{}, len(at))
	var followers []chan struct{}
	for shard, seq := range at {
		done := g.goFollow(ctx, shard, journal.Filter{Namespace: want.namespace}, seq, records)
		followers = append(followers, done)
		go func() { <-done; ended <- struct{}{} }()
	}
	defer func() {
		stop()
		for _, done := range followers {
			<-done
		}
	}()
	return g.feed(ctx, g.newStream(w), want, at, records, ended)
}

func (g *Gateway) feed(ctx context.Context, s *stream, want wanted, at journal.Position, records <-chan shardRecord, ended <-chan struct{}) error {
	defer s.end()
	heartbeat := time.NewTicker(g.cfg.Heartbeat)
	defer heartbeat.Stop()
	for err := s.comment(); err == nil; {
		select {
		case rec := <-records:
			at[rec.shard] = rec.Seq
			f := g.frames.of(rec.shard, rec.Record)
			matches := want.match(f)
			if matches {
				err = s.add(f.typ(), at.String(), f.line)
			}
			if err == nil {
				// What is added waits for no more than is wanted right behind it.
				err = s.flushSome(matches && len(records) > 0)
			}
		case <-heartbeat.C:
			err = s.comment()
		case <-ended:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// feedStart returns the position after which to begin.
func (g *Gateway) feedStart(r *http.Request, values map[string]string) (journal.Position, error) {
	text, given := values["from_seq"]
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		text, given = last, true
	}
	if given {
		// Shards that are not named are read from their beginning: nothing is
		// missed.
		return parsePosition(text, make(journal.Position, g.log.Shards()))
	}
	return journal.End(r.Context(), g.log)
}

// wanted is a reader's choice of events; empty fields match everything.
type wanted struct {
	table     *reducer.Table
	namespace string
	state     events.State
	typ       events.Type
}

func (g *Gateway) parseWanted(values map[string]string) (wanted, error) {
	want := wanted{table: g.table, state: events.State(values["state"]), typ: events.Type(values["type"])}
	if state, given := values["state"]; given && !g.knownState(events.State(state)) {
		return want, badRequest(CodeBadParameter, "state: %.100q is not a state", state)
	}
	if typ, given := values["type"]; given && !g.knownType(events.Type(typ)) {
		return want, badRequest(CodeBadParameter, "type: %.100q is not a type of event", typ)
	}
	return want, nil
}

func (g *Gateway) knownType(t events.Type) bool {
	for _, row := range g.table.Rows() {
		if row.Event == t {
			return true
		}
	}
	return slices.Contains(g.table.StayTypes(), t) || slices.Contains(events.Types(), t)
}

// match reports whether a record is wanted: the state is the one that the event
// leads to or wakes.
func (w *wanted) match(f *frame) bool {
	subject, err := events.ParseSubject(f.record.Subject)
	if err != nil {
		return false // it belongs to no run
	}
	if w.typ != "" && string(w.typ) != f.typ() {
		return false
	}
	if w.state == "" || w.state == subject.To {
		return true
	}
	// Anybody can say where an event leads.
	return f.event != nil && w.state == f.event.To && reducer.CheckEdge(w.table, subject, f.event) == nil
}
