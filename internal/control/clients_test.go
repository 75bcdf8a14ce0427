package control_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/internal/feature/clienttools"
	"github.com/moorebus/moorebus/internal/feature/clienttools/row"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
)

// asksClient gives an agent a client's tool with that timeout; 0: the default.
func asksClient(timeout time.Duration) func(*events.Agent) {
	return func(a *events.Agent) {
		a.ClientTools = []events.ClientTool{{
			Name: "pick", Description: "Picks.", Schema: json.RawMessage(`{"type":"object"}`), Timeout: events.Duration(timeout),
		}}
	}
}

func picks(ids ...string) events.ToolCallReply {
	var reply events.ToolCallReply
	for _, id := range ids {
		reply.Calls = append(reply.Calls, events.Call{ID: id, Name: "pick", Arguments: `{}`})
	}
	return reply
}

// pick makes the run wait for its client.
func (r *timed) pick(run events.Run, ids ...string) {
	r.T.Helper()
	if len(ids) == 1 {
		r.Append(run, events.Planning, &events.LLMToolCall{ToolCallReply: picks(ids...)})
		return
	}
	r.Append(run, events.Planning, &events.LLMParallelToolCalls{ToolCallReply: picks(ids...)})
}

func result(id string) []control.Input {
	return []control.Input{control.ToolCallResult{CallID: id, Success: true, Text: "red"}}
}

// TestClientCallTimesOut: the time runs from when the call goes out and goes on while the run
// is paused.
func TestClientCallTimesOut(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		run := r.start(g, asksClient(0))
		sleep(time.Hour)
		r.pick(run, "a")
		sleep(5 * time.Minute)
		_, err := g.Pause(t.Context(), "", run.ID, events.By{By: "ann"})
		require.NoError(t, err)
		sleep(5*time.Minute - time.Second)
		require.Equal(t, events.Acting, r.Memory(run).State)
		sleep(2 * time.Second)
		mem := r.Memory(run)
		require.Equal(t, events.Observing, mem.State)
		require.Contains(t, mem.ToolCalls["a"].Result.Text(), "ERROR: the client did not answer pick in time")
		require.Equal(t, "timeout", mem.Control.Last.Code)
		_, err = g.Inputs(t.Context(), "", run.ID, result("a"))
		require.True(t, refusal.Is(err, row.CodeAlreadyAnswered), "%v", err)
	})
}

// A client may repeat the arguments of its call in another spelling, and no other ones.
func TestClientRepeatsItsArguments(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		run := r.start(g, asksClient(0))
		call := events.Call{ID: "a", Name: "pick", Arguments: `{"n":9007199254740993}`}
		r.Append(run, events.Planning, &events.LLMToolCall{ToolCallReply: events.ToolCallReply{Calls: []events.Call{call}}})
		sleep(time.Second)
		begins := func(arguments string) error {
			_, err := g.Inputs(t.Context(), "", run.ID, []control.Input{control.ToolCallStarted{CallID: "a", Arguments: arguments}})
			return err
		}
		require.True(t, refusal.Is(begins(`{"n":9007199254740992}`), row.CodeCallDiffers))
		require.NoError(t, begins(`{ "n": 9007199254740993.0 }`))
	})
}

// TestClientsBatchTimesOut: each call of a batch has its own end, and the batch is joined.
func TestClientsBatchTimesOut(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		run := r.start(g, asksClient(0))
		r.pick(run, "a", "b")
		sleep(time.Minute)
		_, err := g.Inputs(t.Context(), "", run.ID, result("a"))
		require.NoError(t, err)
		sleep(time.Hour)
		require.Equal(t, []string{"Start", "LlmParallelToolCalls", "ToolCallResult", "ToolCallResult", "ToolSuccess"}, r.Types(run))
		require.Equal(t, "timeout", r.Memory(run).ParallelResults[1].Code)
	})
}

// TestClientCallOutlastsStallsAndGateways: no stall ends a call that waits, and a gateway that
// was away makes up for the deadline, whatever happened to the call's delivery and timer.
func TestClientCallOutlastsStallsAndGateways(t *testing.T) {
	t.Parallel()
	inTime(t, func(t *testing.T, r *timed) {
		g, first := r.serve(nil)
		run := r.start(g, asksClient(720*time.Hour))
		r.pick(run, "a")
		sleep(719 * time.Hour)
		require.Equal(t, []string{"Start", "LlmToolCall"}, r.Types(run))
		first.Kill()
		sleep(2 * time.Hour)
		require.Len(t, r.Types(run), 2)
		r.serve(nil)
		sleep(time.Minute)
		require.Equal(t, []string{"Start", "LlmToolCall", "ToolFailure"}, r.Types(run))
	})
}

// TestClientCallOfAnAbsentGateway: the delivery waits for a gateway, and so does its deadline.
func TestClientCallOfAnAbsentGateway(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, first := r.serve(nil)
		run := r.start(g, asksClient(time.Hour))
		first.Kill()
		r.pick(run, "a", "b")
		sleep(2 * time.Hour)
		_, second := r.serve(nil)
		second.Kill()
		sleep(time.Minute)
		r.serve(nil)
		sleep(5 * time.Minute)
		require.Equal(t, []string{"Start", "LlmParallelToolCalls", "ToolCallResult", "ToolCallResult", "ToolFailure"}, r.Types(run))
	})
}

// TestLateResult: a result that comes after the deadline and before the timer ends the call with
// its timeout.
func TestLateResult(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, p := r.serve(nil)
		run := r.start(g, asksClient(time.Minute))
		p.Kill()
		r.pick(run, "a")
		sleep(2 * time.Minute)
		idle, err := control.New(control.Config{
			Base:   worker.Base{Store: r.Store, Queue: r.Journal, Feed: r.Journal, Instance: "idle"},
			Timers: r.Journal, KV: r.Journal,
		})
		require.NoError(t, err)
		clienttools.New(idle)
		_, err = idle.Inputs(t.Context(), "", run.ID, result("a"))
		var refused *refusal.Error
		require.ErrorAs(t, err, &refused)
		require.Equal(t, row.CodeAlreadyAnswered, refused.Code)
		require.Equal(t, false, refused.Fields["result"].(map[string]any)["isSuccess"])
		require.Equal(t, []string{"Start", "LlmToolCall", "ToolFailure"}, r.Types(run))
	})
}

// TestForkArmsTheClientsCallAnew: a fork before the answer waits its own time, and each run has
// its own result.
func TestForkArmsTheClientsCallAnew(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		run := r.start(g, asksClient(0))
		r.pick(run, "a")
		sleep(8 * time.Minute)
		forked, err := g.Fork(t.Context(), "", run.ID, forking.Request{At: 2})
		require.NoError(t, err)
		fork := r.Store.Place(events.DefaultNamespace, forked.RunID)
		sleep(3 * time.Minute)
		require.Equal(t, events.Observing, r.Memory(run).State)
		require.Equal(t, events.Acting, r.Memory(fork).State)
		_, err = g.Inputs(t.Context(), "", fork.ID, result("a"))
		require.NoError(t, err)
		require.Equal(t, []string{"Forked", "ToolSuccess"}, r.Types(fork))

		run = r.start(g, asksClient(0))
		r.pick(run, "a")
		forked, err = g.Fork(t.Context(), "", run.ID, forking.Request{At: 2})
		require.NoError(t, err)
		fork = r.Store.Place(events.DefaultNamespace, forked.RunID)
		sleep(11 * time.Minute)
		require.Equal(t, []string{"Forked", "ToolFailure"}, r.Types(fork))
	})
}

// TestNoPoolWatchForClients: that no actor serves the clients' pool answers no call.
func TestNoPoolWatchForClients(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(func(cfg *control.Config) { cfg.PoolWait = time.Second })
		dir := announce.NewDirectory(r.Journal, nil)
		require.NoError(t, dir.Announce(t.Context(), events.ClientPool, "old", []events.ToolSpec{{Name: "x", Pool: events.ClientPool}}))
		require.NoError(t, dir.Withdraw(t.Context(), events.ClientPool, "old"))
		run := r.start(g, asksClient(0))
		r.pick(run, "a")
		sleep(5 * time.Minute)
		require.Equal(t, []string{"Start", "LlmToolCall"}, r.Types(run))
	})
}
