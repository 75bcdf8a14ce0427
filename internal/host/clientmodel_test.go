package host_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/clientmodel"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

// clientHost runs all roles in virtual time, and starts a run whose model is its client.
func clientHost(t *testing.T, change func(*events.Agent), test func(t *testing.T, g *control.Controller, id string, bus *simtest.Journal)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		look, err := typed.New(tool.Definition{Name: "server.look", Description: "Looks.", Effect: tool.Pure, Risk: tool.High},
			func(context.Context, lookAt) (string, error) { return "not here", nil })
		require.NoError(t, err)
		registry, err := toolset.New(look)
		require.NoError(t, err)
		bus := simtest.New(simtest.Options{})
		mock := scripted.NewMock(llm.Text{Content: "the next model's answer"})
		h, stop := running(t, host.Options{
			Bus: bus, Tools: registry, StallAfter: time.Minute,
			Providers: map[string]llm.Caller{"mock": mock},
		})
		defer stop()
		def := events.DefaultAgent()
		def.Name, def.LLM.Provider, def.Tools = "outside", "client", []string{"server.look"}
		change(&def)
		started, err := h.Gateway().Start(t.Context(), "", control.StartRequest{Agent: &def, Task: "Where is it?"})
		require.NoError(t, err)
		synctest.Wait()
		test(t, h.Gateway(), started.RunID, bus)
	})
}

// reply posts a reply to the request that is pending, and returns the request.
func reply(t *testing.T, g *control.Controller, id string, message control.LLMMessageComplete) control.ModelRequest {
	t.Helper()
	synctest.Wait()
	req, err := g.Request(t.Context(), "", id, 0)
	require.NoError(t, err)
	message.Key, message.MessageID = req.Key, "reply to "+req.Key
	_, err = g.Inputs(t.Context(), "", id, []control.Input{message})
	require.NoError(t, err)
	synctest.Wait()
	return req
}

func text(s string) control.LLMMessageComplete { return control.LLMMessageComplete{Content: &s} }

func callOf(name string) control.LLMMessageComplete {
	return control.LLMMessageComplete{Calls: []events.Call{{ID: "c1", Name: name, Arguments: `{"at":"x"}`}}, Usage: &events.Usage{Input: 3, Output: 4}}
}

func memoryOf(t *testing.T, g *control.Controller, id string) *reducer.Memory {
	t.Helper()
	return carry(t, g, id)
}

// A client's replies are judged, approved, summarized and paid for like those of any model.
func TestClientModel(t *testing.T) {
	t.Parallel()
	clientHost(t, func(a *events.Agent) {
		a.Approval = &events.Approval{Policy: events.ApproveAlways}
		a.Config.ReflectEveryNSteps = 1
	}, func(t *testing.T, g *control.Controller, id string, _ *simtest.Journal) {
		first := reply(t, g, id, callOf("server_look")) // as the client was shown it
		require.Contains(t, string(first.Tools), `"name":"server_look"`)
		require.Equal(t, events.WaitingForHuman, stateOf(t, g, id).State)
		_, err := g.Request(t.Context(), "", id, 0)
		require.True(t, refusal.Is(err, refusal.CodeNothingPending), "%v", err)
		decideAs(t, g, id, events.Decision{CallID: "c1", Decision: events.DecisionApproved})
		synctest.Wait()
		require.Equal(t, events.Reflecting, stateOf(t, g, id).State)
		summary := reply(t, g, id, text("It was not there."))
		require.Contains(t, string(summary.Messages), "Summarize the following")
		require.Equal(t, "[]", string(summary.Tools))
		last := reply(t, g, id, text("Nowhere."))
		require.Contains(t, string(last.Messages), "It was not there.")
		mem := memoryOf(t, g, id)
		require.Equal(t, "Nowhere.", *mem.FinalAnswer)
		require.Equal(t, 7, mem.TotalUsage.Total)
		for at := uint64(1); at <= mem.N; at++ {
			req, err := g.Request(t.Context(), "", id, at)
			if err == nil && req.Exact != nil {
				require.Equal(t, "client", req.Dialect)
			}
		}
		result, err := g.Inputs(t.Context(), "", id, []control.Input{control.LLMMessageComplete{MessageID: "reply to " + summary.Key}})
		require.NoError(t, err, "a known message, after the run's end")
		require.Equal(t, mem.N, result.N)
	})
}

// A client may speak the text protocol.
func TestClientModelSpeaksText(t *testing.T) {
	t.Parallel()
	clientHost(t, func(a *events.Agent) { a.LLM.Text = true }, func(t *testing.T, g *control.Controller, id string, _ *simtest.Journal) {
		req := reply(t, g, id, text("<agent><next_state>executing</next_state><thinking_log>hm</thinking_log></agent>"))
		require.Contains(t, string(req.Messages), "agent")
		require.Equal(t, "[]", string(req.Tools))
		reply(t, g, id, text("<agent><action><type>answer</type><value>Here.</value></action></agent>"))
		require.Equal(t, "Here.", *memoryOf(t, g, id).FinalAnswer)
	})
}

// A client may take as long as the run may: the run does not stall.
func TestClientModelTakesItsTime(t *testing.T) {
	t.Parallel()
	clientHost(t, func(*events.Agent) {}, func(t *testing.T, g *control.Controller, id string, _ *simtest.Journal) {
		before := stateOf(t, g, id).N
		time.Sleep(20 * time.Hour) // in the bubble
		synctest.Wait()
		require.Equal(t, before, stateOf(t, g, id).N, "nothing happened")
		reply(t, g, id, text("At last."))
		require.Equal(t, "At last.", *memoryOf(t, g, id).FinalAnswer)
	})
}

// After its timeout the next model is asked, or the run ends; resuming begins the wait anew.
func TestClientModelTimesOut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		models events.Models
		answer string
	}{
		"the run ends": {}, "the next model": {events.Models{{Provider: "client", Model: "a"}, {Provider: "mock", Model: "b"}}, "the next model's answer"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			clientHost(t, func(a *events.Agent) {
				a.LLM.Timeout = events.Duration(10 * time.Minute)
				if c.models != nil {
					a.Models = map[string]events.Models{"default": c.models}
				}
			}, func(t *testing.T, g *control.Controller, id string, _ *simtest.Journal) {
				_, err := g.Pause(t.Context(), "", id, events.By{})
				require.NoError(t, err)
				time.Sleep(time.Hour) // in the bubble
				_, err = g.Resume(t.Context(), "", id, events.By{})
				require.NoError(t, err)
				synctest.Wait()
				time.Sleep(9 * time.Minute) // in the bubble
				synctest.Wait()
				_, err = g.Request(t.Context(), "", id, 0)
				require.NoError(t, err, "the client has a minute left")
				time.Sleep(2 * time.Minute) // in the bubble
				synctest.Wait()
				mem := memoryOf(t, g, id)
				if c.answer == "" {
					require.Equal(t, "network", mem.Error.Code)
					require.Contains(t, mem.Error.Message, "10m0s")
					return
				}
				require.Nil(t, mem.Error)
				require.Equal(t, c.answer, *mem.FinalAnswer)
			})
		})
	}
}

// A user's message makes the request obsolete, and what was written for it is not used.
func TestClientModelIsInterrupted(t *testing.T) {
	t.Parallel()
	clientHost(t, func(a *events.Agent) { a.Mode = events.ModeChat }, func(t *testing.T, g *control.Controller, id string, _ *simtest.Journal) {
		req, err := g.Request(t.Context(), "", id, 0)
		require.NoError(t, err)
		_, err = g.Inputs(t.Context(), "", id, []control.Input{control.LLMChunk{MessageID: "m", Chunk: "It is"}})
		require.NoError(t, err)
		_, err = g.Inputs(t.Context(), "", id, []control.Input{control.UserMessage{MessageID: "u", Content: "Wait!"}})
		require.NoError(t, err)
		synctest.Wait()
		_, err = g.Inputs(t.Context(), "", id, []control.Input{control.LLMMessageComplete{MessageID: "m", Key: req.Key}})
		require.True(t, refusal.Is(err, refusal.CodeObsolete), "%v", err)
		_, err = g.Inputs(t.Context(), "", id, []control.Input{control.LLMMessageComplete{MessageID: "m"}})
		require.True(t, refusal.Is(err, refusal.CodeNoContent), "%v", err)
		next := reply(t, g, id, text("Yes?"))
		require.NotEqual(t, req.Key, next.Key)
		require.Contains(t, string(next.Messages), "Wait!")
		require.Equal(t, events.WaitingForUser, stateOf(t, g, id).State, fmt.Sprint(stateOf(t, g, id).N))
	})
}

// A timer of a wait before a pause ends nothing, and one without a note begins the wait anew.
func TestClientModelTimersOfEarlierWaits(t *testing.T) {
	t.Parallel()
	const timeout = 10 * time.Minute
	clientHost(t, func(a *events.Agent) { a.LLM.Timeout = events.Duration(timeout) }, func(t *testing.T, g *control.Controller, id string, bus *simtest.Journal) {
		req, err := g.Request(t.Context(), "", id, 0)
		require.NoError(t, err)
		early, err := json.Marshal(clientmodel.Wait{Key: req.Key, Wake: req.N})
		require.NoError(t, err)
		_, err = g.Pause(t.Context(), "", id, events.By{})
		require.NoError(t, err)
		_, err = g.Resume(t.Context(), "", id, events.By{})
		require.NoError(t, err)
		synctest.Wait()
		run := events.NewRun("default", id, bus.Shards())
		for _, note := range [][]byte{early, nil} {
			require.NoError(t, bus.SetTimer(t.Context(), run, ports.TimerModel, time.Now(), note))
			time.Sleep(timeout - time.Minute) // in the bubble
			synctest.Wait()
			_, err = g.Request(t.Context(), "", id, 0)
			require.NoError(t, err, "%s", note)
		}
		time.Sleep(2 * time.Minute) // in the bubble
		synctest.Wait()
		require.Contains(t, memoryOf(t, g, id).Error.Message, "10m0s")
	})
}
