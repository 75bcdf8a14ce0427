package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool/builtin"
)

const iterations = 300

// rememberer is a model that remembers one thing after the other, and loads and
// forgets some.
func rememberer(_ context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
	meta := llm.Meta{Confidence: 1}
	i := req.Replies
	if i >= iterations {
		return llm.Text{Meta: meta, Content: "I remember all of it."}, nil
	}
	arguments := map[string]any{"tags": fmt.Sprintf("fact, n %d", i), "value": strings.Repeat(fmt.Sprintf("fact %d. ", i), 40)}
	name := builtin.WorkingMemoryAdd
	switch i % 10 {
	case 3, 7:
		name = builtin.StorageSave
	case 5:
		name, arguments = builtin.StorageLoad, map[string]any{"tags": []string{fmt.Sprint("n ", i/2)}}
	case 8:
		name, arguments = builtin.WorkingMemoryRemove, map[string]any{"tags": fmt.Sprintf("n %d, fact", i-2)}
	}
	text, err := json.Marshal(arguments)
	return llm.ToolCalls{Meta: meta, Calls: []llm.Call{{ID: fmt.Sprint("c", i), Name: name, Arguments: string(text)}}}, err
}

// A run whose memory goes far beyond its limits keeps within them, loses nothing,
// and is replayed without its storage.
func TestMemoryBeyondEveryLimit(t *testing.T) {
	bus := busOf(t)
	b := agent.New("Remember everything.").Name("keeper").LLM(llm.CallerFunc(rememberer)).Bus(bus).
		Configure(func(c *events.Config) {
			c.MaxSteps, c.PagingLimit, c.HardLimit, c.ReflectEveryNSteps = 2*iterations, 400, 600, 0
		})
	for _, name := range builtin.MemoryNames() {
		made, err := builtin.New(name, builtin.Options{})
		require.NoError(t, err)
		b.Tool(made)
	}
	made, err := b.Build()
	require.NoError(t, err)
	answer, err := made.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, "I remember all of it.", answer)

	run := events.NewRun(events.DefaultNamespace, made.Memory().RunID, bus.Shards())
	machine := reducer.NewMachine(reducer.MachineOptions{})
	mem := machine.Initial(run.ID)
	saved, pagings := map[string]string{}, 0
	for rec, err := range bus.Read(t.Context(), run, 0) {
		require.NoError(t, err)
		e, err := machine.Apply(mem, rec.Subject, rec.Body)
		require.NoError(t, err)
		switch p := e.Data.(type) {
		case *events.WorkingMemoryAdded:
			saved[strings.Join(p.Tags, " ")] = p.Value
		case *events.StorageSaved:
			saved[strings.Join(p.Tags, " ")] = p.Value
		case *events.WorkingMemoryRemoved:
			delete(saved, strings.Join(p.Tags, " "))
		case *events.PageDone:
			pagings++
			require.LessOrEqual(t, reducertest.WorkingMemoryTokens(mem), 320)
		}
	}
	require.Greater(t, pagings, 20)
	require.Greater(t, len(saved), 200)
	of := journal.StorageOf{Namespace: run.Namespace, Agent: "keeper"}
	for tags, value := range saved {
		set := strings.Fields(tags)
		there, err := bus.FindEntries(t.Context(), of, journal.StorageQuery{Tags: set})
		require.NoError(t, err)
		if held := slices.IndexFunc(mem.WorkingMemory, func(e reducer.MemoryEntry) bool { return slices.Equal(e.Tags, set) }); held >= 0 {
			require.Equal(t, value, mem.WorkingMemory[held].Value)
			continue
		}
		require.Equal(t, []events.Entry{{Tags: set, Value: value}}, there.Entries)
	}
	report, err := verify.Log(t.Context(), bus, machine, verify.Options{Runs: []events.Run{run}})
	require.NoError(t, err)
	require.True(t, report.Clean(), "%+v", report)
}

// An application has estimators of its own; a name that nobody registered is an
// error when the run is to start.
func TestEstimatorOfOnesOwn(t *testing.T) {
	say := llm.CallerFunc(func(context.Context, llm.Request, func(llm.Chunk)) (llm.Response, error) {
		return llm.Text{Meta: llm.Meta{Confidence: 1}, Content: "the answer"}, nil
	})
	bus := busOf(t)
	with := func(name string, budget int) *agent.Builder {
		return agent.New("Say it.").LLM(say).Bus(bus).Budget(events.Budget{MaxInputTokens: budget}).
			Estimator("dear", func(string) int { return 1000 }).Configure(func(c *events.Config) { c.TokenEstimator = name })
	}
	for name, want := range map[string]string{
		"": "", tokens.Bytes4: "", tokens.O200K: "", "dear": "the budget of 500 input tokens is used up",
		"o201k": `config.token_estimator: "o201k" is not known; there are: bytes/4, dear, o200k`,
	} {
		made, err := with(name, 500).Build()
		require.NoError(t, err)
		_, err = made.Run(t.Context())
		if want == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, want)
	}
}
