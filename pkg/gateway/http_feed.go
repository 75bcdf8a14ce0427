package gateway

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// positions is how far a reader is in every shard: the sequence number of the
// last record that it has seen.
type positions []uint64

// String writes positions as `<shard>:<seq>[,<shard>:<seq>…]`.
func (p positions) String() string {
	parts := make([]string, len(p))
	for shard, seq := range p {
		parts[shard] = strconv.Itoa(shard) + ":" + strconv.FormatUint(seq, 10)
	}
	return strings.Join(parts, ",")
}

// parsePositions reads what String writes; a shard that is left out stays as
// it is in base.
func parsePositions(text string, base positions) (positions, error) {
	p := slices.Clone(base)
	seen := map[int]bool{}
	for part := range strings.SplitSeq(text, ",") {
		left, right, _ := strings.Cut(part, ":")
		shard, err := strconv.Atoi(left)
		seq, seqErr := strconv.ParseUint(right, 10, 63)
		if err != nil || seqErr != nil || shard < 0 || shard >= len(p) || seen[shard] {
			return nil, badRequest(CodeBadParameter, "%.200q is not a position <shard>:<seq>[,<shard>:<seq>…] of %d shards", text, len(p))
		}
		seen[shard] = true
		p[shard] = seq
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
	ctx, stop := g.streaming(r)
	defer stop()
	records := make(chan shardRecord)
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

func (g *Gateway) feed(ctx context.Context, s *stream, want wanted, at positions, records <-chan shardRecord, ended <-chan struct{}) error {
	defer s.end()
	heartbeat := time.NewTicker(g.cfg.Heartbeat)
	defer heartbeat.Stop()
	for err := s.comment(); err == nil; {
		select {
		case rec := <-records:
			at[rec.shard] = rec.Seq
			if typ, match := want.match(rec.Record); match {
				err = s.event(typ, at.String(), rec.Body)
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
func (g *Gateway) feedStart(r *http.Request, values map[string]string) (positions, error) {
	text, given := values["from_seq"]
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		text, given = last, true
	}
	at := make(positions, g.log.Shards())
	if given {
		// Shards that are not named are read from their beginning: nothing is
		// missed.
		return parsePositions(text, at)
	}
	for shard := range at {
		last, err := g.log.Last(r.Context(), shard)
		if err != nil {
			return nil, err
		}
		at[shard] = last
	}
	return at, nil
}

// wanted is a reader's choice of events; empty fields match everything.
type wanted struct {
	codec     *events.Codec
	namespace string
	state     events.State
	typ       events.Type
}

func (g *Gateway) parseWanted(values map[string]string) (wanted, error) {
	want := wanted{codec: g.machine.Codec(), state: events.State(values["state"]), typ: events.Type(values["type"])}
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

// match returns the name of a record's type, and whether it is wanted: the state
// is the one that the event leads to or wakes.
func (w *wanted) match(rec journal.Record) (string, bool) {
	subject, err := events.ParseSubject(rec.Subject)
	if err != nil {
		return "", false // it belongs to no run
	}
	typ, to := "poison", events.State("")
	if e, err := w.codec.Decode(rec.Body); err == nil {
		typ, to = string(e.Type()), e.To
	}
	switch {
	case w.state != "" && w.state != to && w.state != subject.To:
		return "", false
	case w.typ != "" && string(w.typ) != typ:
		return "", false
	}
	return typ, true
}
