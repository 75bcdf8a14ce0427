package reducer_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func queued(p *events.Start) { p.Queued, p.Priority = true, events.PriorityHigh }

// TestQueuedRun: a queued run has no work, whatever comes from outside, until it is admitted once.
func TestQueuedRun(t *testing.T) {
	s := started(t, queued)
	require.Equal(t, events.Nobody, lastSubject(t, s).To, "nobody is woken")
	require.Empty(t, s.keys())
	s.do(&events.Paused{}, &events.Resumed{}, &events.UserMessage{MessageID: "m", Content: "more"})
	require.Empty(t, s.keys())
	s.do(&events.Admitted{})
	require.Equal(t, events.Planning, lastSubject(t, s).To)
	require.Len(t, s.keys(), 1)
	require.Equal(t, &reducer.Admission{Priority: events.PriorityHigh, At: s.Mem.Updated}, s.Mem.Control.Admission)
	s.refuses(&events.Admitted{}, "is not queued")
	s.do(&events.LLMFinalAnswer{Reply: events.Reply{Content: "done"}})
	require.Equal(t, events.Done, s.Mem.State)
	started(t).refuses(&events.Admitted{}, "is not queued")
	newScene(t).refuses(startWith(func(p *events.Start) { p.Priority = "urgent" }), "is not high, normal or low")
}

// TestForkOfAQueuedRun: a fork is not queued, whatever its parent was.
func TestForkOfAQueuedRun(t *testing.T) {
	s := started(t, queued)
	f, err := s.Fork(s.Mem.N, events.Forked{})
	require.NoError(t, err)
	require.False(t, f.Mem.Queued())
	require.True(t, s.Mem.Queued())
}

// TestQueuedRunsNeedTheirRevision: no run of an earlier revision is queued.
func TestQueuedRunsNeedTheirRevision(t *testing.T) {
	older, err := reducer.DefaultTable().At(5)
	require.NoError(t, err)
	newScene(t).refuses(startWith(queued, func(p *events.Start) { p.TableHash = older.Hash() }), "is of revision 6, and its run of revision 5")
}

// TestPins: a run pins what the builds of the release before this one can read.
func TestPins(t *testing.T) {
	table := reducer.DefaultTable()
	before, err := table.At(reducer.Previous)
	require.NoError(t, err)
	older, err := table.At(5)
	require.NoError(t, err)
	require.Equal(t, before.Hash(), table.Pins(startWith()))
	require.Equal(t, before.Hash(), table.Pins(startWith(queued)))
	require.Equal(t, older.Hash(), older.Pins(startWith()))
	require.NotEqual(t, older.Hash(), table.Hash())
}

func startWith(change ...func(*events.Start)) *events.Start {
	p := reducertest.StartOf("find it", events.ModeTask)
	for _, c := range change {
		c(p)
	}
	return p
}

func lastSubject(t *testing.T, s *scene) events.Subject {
	t.Helper()
	subject, err := events.ParseSubject(s.Records[len(s.Records)-1].Subject)
	require.NoError(t, err)
	return subject
}

// TestProviderToolsNeedTheirRevision: no build that would ask a model without its provider's tools
// works on a run that has them.
func TestProviderToolsNeedTheirRevision(t *testing.T) {
	table := reducer.DefaultTable()
	older, err := table.At(6)
	require.NoError(t, err)
	search := func(p *events.Start) {
		p.Agent.ProviderTools = []json.RawMessage{json.RawMessage(`{"type":"web_search"}`)}
	}
	require.Equal(t, table.Hash(), table.Pins(startWith(search)))
	require.NotEqual(t, older.Hash(), table.Hash())
	newScene(t).refuses(startWith(search, func(p *events.Start) { p.TableHash = older.Hash() }), "is of revision 7, and its run of revision 6")
	newScene(t).refuses(startWith(func(p *events.Start) {
		p.Agent.ProviderTools, p.TableHash = []json.RawMessage{json.RawMessage(`{"type":"function"}`)}, table.Hash()
	}), "which the provider does not carry out")
	s := started(t, search)
	require.JSONEq(t, `{"type":"web_search"}`, string(s.Mem.Control.Agent.ProviderTools[0]))
}
