package watch

import (
	"fmt"
	"testing"

	tea "charm.land/bubbletea/v2"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
)

// BenchmarkScrub steps through a run of 10,000 events and draws each screen, in both directions
// and in every panel that is made of the memory.
func BenchmarkScrub(b *testing.B) {
	r := reducertest.NewRun(nil)
	add := func(origin events.State, p events.Payload) {
		_, _, err := r.Append(origin, p)
		require.NoError(b, err)
	}
	start := reducertest.StartOf("count", events.ModeTask)
	start.Agent.Config.MaxSteps = 100_000
	add(events.Idle, start)
	for i := 0; len(r.Records) < 10_000; i++ {
		id := fmt.Sprint("c", i)
		add(events.Planning, &events.LLMToolCall{ToolCallReply: reply(id, fmt.Sprintf(`{"i": %d}`, i))})
		add(events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: id, Success: true, Observation: "SUCCESS: a result of 33 bytes", Code: "ok"}})
		add(events.Observing, &events.Continue{})
	}
	log := simtest.New(simtest.Options{})
	for _, rec := range r.Records {
		log.Inject(0, rec.Subject, rec.Body)
	}
	for p := range panels {
		for _, key := range []rune{tea.KeyLeft, tea.KeyRight} {
			b.Run(fmt.Sprintf("%s/%s", panelNames[p], tea.KeyPressMsg{Code: key}), func(b *testing.B) {
				m, _, err := load(b.Context(), Options{Log: log, Machine: r.Machine, Run: r.ID})
				require.NoError(b, err)
				m.panel = p
				m.seek(m.history.len() - 1)
				m.View()
				m.seek(m.history.len() / 2)
				m.View()
				for b.Loop() {
					m.Update(tea.KeyPressMsg{Code: key})
					m.View()
				}
			})
		}
	}
	b.Run("load", func(b *testing.B) {
		for b.Loop() {
			m, _, err := load(b.Context(), Options{Log: log, Machine: r.Machine, Run: r.ID})
			require.NoError(b, err)
			m.View()
		}
	})
	b.Run("first step back", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			m, _, err := load(b.Context(), Options{Log: log, Machine: r.Machine, Run: r.ID})
			require.NoError(b, err)
			b.StartTimer()
			m.Update(tea.KeyPressMsg{Code: tea.KeyLeft})
			m.View()
		}
	})
}
