package reducer_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

var edges = sync.OnceValue(func() []reducer.Edge { return reducer.Edges(reducer.DefaultTable()) })

// checkEdge requires that whatever may be published is among the edges, on which
// permissions are given.
func checkEdge(t require.TestingT, before *reducer.Memory, s events.Subject, p events.Payload) {
	for _, from := range reducer.Origins(reducer.DefaultTable(), before, p) {
		found := slices.ContainsFunc(edges(), func(e reducer.Edge) bool {
			return e.From == from && e.To == s.To && (e.Pool == s.Pool || e.Pool == events.Wildcard)
		})
		require.True(t, found, "%s in %s goes from %s to %s in pool %s, which is no edge", events.TypeOf(p), before.State, from, s.To, s.Pool)
	}
}

// TestEdges: the edges of the built-in table, state by state, and no others.
func TestEdges(t *testing.T) {
	got := map[events.State][]string{}
	for _, e := range edges() {
		got[e.From] = append(got[e.From], fmt.Sprintf("%s.%s", e.To, e.Pool))
	}
	ended := " error.agents error.default"
	for from, want := range map[events.State]string{
		events.Idle: "acting.*" + ended + " observing.default paging.default parallel_acting.* planning.default reflecting.default waiting_for_human.default waiting_for_user.default",
		events.Planning: "acting.* done.agents done.default" + ended + " none.default parallel_acting.* planning.default" +
			" reflecting.default waiting_for_human.default waiting_for_user.default",
		events.Reflecting:      strings.TrimSpace(ended) + " none.default planning.default",
		events.Acting:          strings.TrimSpace(ended) + " none.agents none.default observing.default waiting_for_human.default",
		events.ParallelActing:  strings.TrimSpace(ended) + " none.default observing.default parallel_acting.*",
		events.Observing:       strings.TrimSpace(ended) + " none.default paging.default planning.default reflecting.default",
		events.Paging:          strings.TrimSpace(ended) + " none.default planning.default",
		events.WaitingForHuman: "acting.*" + ended + " none.default observing.default parallel_acting.* planning.default waiting_for_human.default",
		events.WaitingForUser:  "done.agents done.default" + ended + " none.default planning.default",
		events.Control: "acting.* cancelled.agents cancelled.default" + ended + " none.default observing.default paging.default parallel_acting.*" +
			" planning.default reflecting.default waiting_for_human.default waiting_for_user.default",
		// A poisoned run may be ended by whoever meets it; nobody owns these.
		events.Done: strings.TrimSpace(ended), events.Errored: strings.TrimSpace(ended), events.Cancelled: strings.TrimSpace(ended),
	} {
		require.Equal(t, want, strings.Join(got[from], " "), "from %s", from)
		delete(got, from)
	}
	require.Empty(t, got)
}

// TestCheckEdge: what a body says against its subject, without the run.
func TestCheckEdge(t *testing.T) {
	table, run := reducer.DefaultTable(), events.Run{ID: "r"}
	cancel := events.Event{Run: "r", From: events.Acting, To: events.Cancelled, Data: &events.CancelledRun{}}
	from := func(s events.State) events.Subject {
		return events.Subject{Run: run, From: s, To: events.Cancelled, Pool: events.DefaultPool}
	}
	require.NoError(t, reducer.CheckEdge(table, from(events.Control), &cancel))
	for want, forge := range map[string]func(s *events.Subject, e *events.Event){
		"belongs to run r (subject: x)":                            func(s *events.Subject, _ *events.Event) { s.Run.ID = "x" },
		"Cancelled in state acting may not come from acting":       func(s *events.Subject, _ *events.Event) { s.From = events.Acting },
		"leads to cancelled and is on a subject to none":           func(s *events.Subject, _ *events.Event) { s.To = events.Nobody },
		"leads to cancelled and is on a subject to done":           func(s *events.Subject, _ *events.Event) { s.To = events.Done },
		"to is done, the table leads from acting":                  func(_ *events.Subject, e *events.Event) { e.To = events.Done },
		"invalid transition: moorebus.Cancelled in state done":     func(_ *events.Subject, e *events.Event) { e.From = events.Done },
		"invalid transition: moorebus.Forked in state acting":      func(_ *events.Subject, e *events.Event) { e.Data = &events.Forked{} },
		"invalid transition: moorebus.LlmToolCall in state acting": func(_ *events.Subject, e *events.Event) { e.Data = &events.LLMToolCall{} },
		"leads to acting and is on a subject to cancelled":         func(_ *events.Subject, e *events.Event) { e.To, e.Data = events.Acting, &events.Paused{} },
		"ToolCallDispatched in state parallel_acting may not come fr": func(_ *events.Subject, e *events.Event) {
			e.From, e.To, e.Data = events.ParallelActing, events.ParallelActing, &events.ToolCallDispatched{}
		},
		"invalid transition: moorebus.Forked in state idle is not in ": func(_ *events.Subject, e *events.Event) {
			e.From, e.To, e.Data = events.Idle, events.Done, &events.Forked{}
		},
	} {
		s, e := from(events.Control), cancel
		forge(&s, &e)
		require.ErrorContains(t, reducer.CheckEdge(table, s, &e), strings.ReplaceAll(want, "moorebus.", ""))
	}
	fork := events.Event{Run: "r", From: events.Idle, To: events.Acting, Data: &events.Forked{}}
	require.NoError(t, reducer.CheckEdge(table, events.Subject{Run: run, From: events.Idle, To: events.Acting, Pool: "web"}, &fork))
}
