package httpapi

import (
	"bytes"
	"context"
	"net/http"
	"slices"

	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/httpapi/sse"
	"github.com/moorebus/moorebus/internal/logwalk"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// getEvents streams the namespace's events, from a position or from now on.
func (s *Server) getEvents(w http.ResponseWriter, r *http.Request, in requests.AllEvents) error {
	want, err := s.wantedOf(in)
	if err != nil {
		return err
	}
	if want.namespace, err = s.control.CheckNamespace(in.Namespace); err != nil {
		return err
	}
	at, err := s.feedStart(r.Context(), in)
	if err != nil {
		return err
	}
	w.Header().Set(requests.PositionHeader, at.String())
	if r.Method == http.MethodHead {
		sse.WriteHeader(w)
		return nil
	}
	done, err := s.streams.Open(r)
	if err != nil {
		return err
	}
	defer done()
	ctx, stop := s.streams.Context(r)
	defer stop()
	records := make(chan sse.Record, sse.ReadAhead)
	ended := make(chan struct{}, len(at))
	var followers []chan struct{}
	for shard, seq := range at {
		done := s.streams.Follow(ctx, shard, journal.Filter{Namespace: want.namespace}, seq, records)
		followers = append(followers, done)
		go func() { <-done; ended <- struct{}{} }()
	}
	defer func() {
		stop()
		for _, done := range followers {
			<-done
		}
	}()
	return s.feed(ctx, s.streams.Stream(w), want, at, records, ended)
}

func (s *Server) feed(ctx context.Context, st *sse.Stream, want wanted, at logwalk.Position, records <-chan sse.Record, ended <-chan struct{}) error {
	defer st.Stop()
	heartbeat := s.streams.Heartbeat()
	defer heartbeat.Stop()
	for err := st.Comment(); err == nil; {
		select {
		case rec := <-records:
			at[rec.Shard] = rec.Seq
			matches := false
			if want.mayMatch(&rec.Record) {
				f := s.frames.of(rec.Shard, rec.Record)
				if matches = want.match(f); matches {
					err = st.Add(f.typ(), at.String(), want.show.line(f))
				}
			}
			if err == nil {
				// An event waits only for records that are there already.
				err = st.FlushSome(matches && len(records) > 0)
			}
		case <-heartbeat.C:
			err = st.Comment()
		case <-ended:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

func (s *Server) feedStart(ctx context.Context, in requests.AllEvents) (logwalk.Position, error) {
	from := in.FromSeq
	if in.LastEventID != "" {
		from = &in.LastEventID
	}
	if from != nil {
		// A shard that is not named is read from its beginning, so nothing is missed.
		p, err := make(logwalk.Position, s.control.Log.Shards()).Parse(*from)
		if err != nil {
			return nil, route.BadParameter("%s", err.Error())
		}
		return p, nil
	}
	return logwalk.End(ctx, s.control.Log)
}

// wanted selects events. Empty fields match everything.
type wanted struct {
	table     *reducer.Table
	namespace string
	state     events.State
	typ       events.Type
	show      options
}

func (s *Server) wantedOf(in requests.AllEvents) (wanted, error) {
	want := wanted{table: s.control.Table}
	if in.View != nil {
		if want.show.records = *in.View == requests.ViewRecords; !want.show.records {
			return want, route.BadParameter("view: %.100q is not a view; there is: records", *in.View)
		}
	}
	if in.State != nil {
		if want.state = *in.State; !slices.Contains(s.control.Table.States(), want.state) {
			return want, route.BadParameter("state: %.100q is not a state", want.state)
		}
	}
	if in.Type != nil {
		if want.typ = *in.Type; !s.knownType(want.typ) {
			return want, route.BadParameter("type: %.100q is not a type of event", want.typ)
		}
	}
	return want, nil
}

func (s *Server) knownType(t events.Type) bool {
	for _, row := range s.control.Table.Spec().Rows {
		if row.Event == t {
			return true
		}
	}
	return slices.Contains(s.control.Table.Spec().Stay, t) || slices.Contains(events.Types(), t)
}

// mayMatch reports whether [wanted.match] may accept a record, without decoding it. A decoded
// event can have a type or a target state only if their letters are in the body, or an escape
// that may stand for a letter.
func (w *wanted) mayMatch(rec *journal.Record) bool {
	return mayHold(rec.Body, string(w.typ)) && (mayHold(rec.Body, string(w.state)) || toState(rec.Subject) == w.state)
}

// toState is the state that an event enters by its subject, or whose workers it wakes.
func toState(subject string) events.State {
	s, err := events.ParseSubject(subject)
	if err != nil {
		return ""
	}
	return s.To
}

// mayHold reports whether a string in JSON may be the name.
func mayHold(body []byte, name string) bool {
	return name == "" || bytes.Contains(body, []byte(name)) || bytes.Contains(body, []byte(`\u`))
}

// match reports whether a record is wanted. The state is the one that the event enters, or
// whose workers it wakes.
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
	// The body's target state counts only if the subject allows the event.
	return f.event != nil && w.state == f.event.To && reducer.CheckEdge(w.table, subject, f.event) == nil
}
