package sim

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/feature/clienttools"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/observer"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

var update = flag.Bool("update", false, "write the golden files anew")

var plain = reducer.NewMachine(reducer.MachineOptions{})

// questions is how many messages the user sends; the model answers each.
const questions = 200

// interlocutor is a model that answers "a7" to "q7", after it looked something up.
// It gives its calls the same ids again and again, as some providers do.
type interlocutor struct {
	mu       sync.Mutex
	requests []llm.Request
}

// asks returns the turn that a request is for, and how many replies of that turn it
// shows already.
func asks(req llm.Request) (turn, replies int) {
	for _, m := range slices.Backward(req.Messages) {
		switch m.Role {
		case llm.RoleUser:
			_, _ = fmt.Sscanf(m.Content, "q%d", &turn) // 0 where it is none
			return turn, replies
		case llm.RoleAssistant:
			replies++
		}
	}
	return 0, 0
}

func (i *interlocutor) call(_ context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
	i.mu.Lock()
	i.requests = append(i.requests, req)
	i.mu.Unlock()
	turn, replies := asks(req)
	look := func(name string) llm.Call { return llm.Call{Name: name, Arguments: fmt.Sprintf(`{"n":%d}`, turn)} }
	own := func(name, arguments string) llm.Call {
		return llm.Call{Name: events.ReservedPrefix + name, Arguments: arguments}
	}
	reply := llm.ToolCalls{Meta: llm.Meta{Confidence: 1, Model: "m", Usage: llm.Usage{Input: 10, Output: 5, Total: 15}}}
	switch forgets := turn%10 == 9; {
	case forgets && replies == 0:
		reply.Calls = []llm.Call{own("search_tool_calls", `{"query":"\"n\":1}","limit":3}`)}
	case forgets && replies == 1:
		reply.Calls = []llm.Call{look("look"), own("load_tool_result", `{"call_ids":["call_1~1"]}`), own("load_messages", `{"count":4}`)}
	case replies == 0 && turn%5 == 4:
		reply.Calls = []llm.Call{look("look"), look("sum")}
	case replies == 0:
		reply.Calls = []llm.Call{look("look")}
	default:
		return llm.Text{Meta: reply.Meta, Content: fmt.Sprint("a", turn)}, nil
	}
	for i := range reply.Calls {
		reply.Calls[i].ID = fmt.Sprint("call_", i+1)
	}
	return reply, nil
}

// TestALongConversation has 400 messages with tools on a window of 10. What the
// model sees at every call is held to a golden file; the log grows by as much at
// the end as at the beginning.
func TestALongConversation(t *testing.T) {
	model := &interlocutor{}
	var sizes []int // of the log after each turn
	synctest.Test(t, func(t *testing.T) {
		log := simtest.New(simtest.Options{})
		g, p := installation(t, log, model)
		agent := events.DefaultAgent()
		agent.Name, agent.Mode, agent.LLM.Provider = "talker", events.ModeChat, "scripted"
		agent.SystemPrompt, agent.Config.ReflectEveryNSteps = "You remember little.", 0
		agent.Tools = []string{"look", "sum"}
		started, err := g.Start(t.Context(), "", control.StartRequest{Agent: &agent, Task: "q0"})
		require.NoError(t, err)
		run := runlog.New(runlog.Options{Log: p}).Place(events.DefaultNamespace, started.RunID)
		for turn := 1; ; turn++ {
			sizes = append(sizes, answered(t, p, run))
			if turn == questions {
				break
			}
			_, err := g.Inputs(t.Context(), "", run.ID, []control.Input{control.UserMessage{MessageID: fmt.Sprint("m", turn), Content: fmt.Sprint("q", turn)}})
			require.NoError(t, err)
		}
		checkConversation(t, p, run)
	})
	first, last := sizes[19]-sizes[9], sizes[questions-1]-sizes[questions-11]
	require.InEpsilon(t, first, last, 0.03, "ten turns take %d bytes at first, and %d in the end", first, last)
	var seen strings.Builder
	for n, req := range model.requests {
		seen.WriteString(outline(t, n, req) + "\n")
	}
	for _, n := range []int{0, 20, len(model.requests) - 1} {
		full, err := json.MarshalIndent(model.requests[n].Messages, "", " ")
		require.NoError(t, err)
		fmt.Fprintf(&seen, "\nrequest %d:\n%s\n", n, full)
	}
	golden(t, "conversation.golden", seen.String())
}

// installation is all roles in one process.
func installation(t *testing.T, log *simtest.Journal, model *interlocutor) (*control.Controller, *simtest.Process) {
	p := log.NewProcess()
	store := runlog.New(runlog.Options{Log: p})
	var tools []tool.Tool
	for _, name := range []string{"look", "sum"} {
		tools = append(tools, echo{tool.Definition{Name: name, Effect: tool.Pure, Schema: anyObject}})
	}
	registry, err := toolset.New(tools...)
	require.NoError(t, err)
	pl, err := planner.New(planner.Config{
		Base: worker.Base{Instance: "1", Store: store, Queue: p, Feed: p}, KV: p, Validator: validator, Approval: policies,
		Providers: map[string]llm.Caller{"scripted": llm.CallerFunc(model.call)},
	})
	require.NoError(t, err)
	ac, err := actor.New(actor.Config{Base: worker.Base{Instance: "1", Store: store, Queue: p, Feed: p}, KV: p, Blobs: p, Tools: registry, Approval: policies})
	require.NoError(t, err)
	ob, err := observer.New(observer.Config{Base: worker.Base{Instance: "1", Store: store, Queue: p, Feed: p}})
	require.NoError(t, err)
	g, err := control.New(control.Config{
		Base: worker.Base{Instance: "1", Store: store, Queue: p, Feed: p}, Timers: p, KV: p, Validator: validator, CheckApproval: policies.Check,
	})
	require.NoError(t, err)
	g.Admission = control.Unbounded{}
	clienttools.New(g)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []runner{pl.Run, ac.Run, ob.Run, g.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { cancel(); running.Wait() })
	time.Sleep(time.Second) // in the bubble: everybody has announced what there is
	return g, p
}

// echo is a tool that says what it was asked.
type echo struct{ def tool.Definition }

func (e echo) Definition() tool.Definition { return e.def }

func (e echo) Run(_ context.Context, c tool.Call) (string, error) {
	return c.Name + " of " + c.Arguments, nil
}

// answered waits until the run waits for its user and returns the size of its log.
func answered(t *testing.T, log journal.Log, run events.Run) int {
	t.Helper()
	for range 1000 {
		time.Sleep(100 * time.Millisecond) // in the bubble
		head, err := log.Head(t.Context(), run)
		require.NoError(t, err)
		if s, err := events.ParseSubject(head.Subject); err == nil && s.To == events.WaitingForUser {
			size := 0
			for rec, err := range log.Read(t.Context(), run, 0) {
				require.NoError(t, err)
				size += len(rec.Body)
			}
			return size
		}
	}
	t.Fatal("the model does not answer")
	return 0
}

// checkConversation holds the run itself to what it should be in the end.
func checkConversation(t *testing.T, log journal.Log, run events.Run) {
	fold := runlog.NewFold(log, plain, run)
	for rec, err := range log.Read(t.Context(), run, 0) {
		require.NoError(t, err)
		_, err = fold.Apply(t.Context(), rec)
		require.NoError(t, err)
	}
	mem := fold.Memory()
	require.Len(t, mem.Messages, 2*questions)
	require.Len(t, mem.ToolCalls, questions+questions/10, "one call a turn, two in each tenth, and none of ours")
	for id, call := range mem.ToolCalls {
		require.NotNil(t, call.Result, id)
		require.False(t, strings.HasPrefix(call.Name, events.ReservedPrefix))
	}
	report, err := verify.Log(t.Context(), log, plain, verify.Options{All: true})
	require.NoError(t, err)
	require.True(t, report.Clean())
}

// outline says on one line what a request shows: q7 and a7 are messages, look:7 is
// a call that is followed by its result. Calls of one reply stand together.
func outline(t *testing.T, n int, req llm.Request) string {
	t.Helper()
	line := fmt.Sprintf("%d:", n)
	messages, count := req.Messages, 0
	for i := 0; i < len(messages); i++ {
		m := messages[i]
		require.NotEqual(t, llm.RoleTool, m.Role, "request %d: a result without its call", n)
		if m.Role == llm.RoleSystem {
			require.Zero(t, i)
			continue
		}
		if m.Content != "" {
			line += " " + m.Content
			count++
		}
		var calls []string
		for _, c := range m.Calls {
			i++
			require.Less(t, i, len(messages), "request %d: a call without its result", n)
			result := messages[i]
			require.Equal(t, llm.Message{Role: llm.RoleTool, CallID: c.ID, Name: c.Name, Content: result.Content}, result, "request %d", n)
			calls = append(calls, brief(t, c, result.Content))
		}
		if calls != nil {
			line += " " + strings.Join(calls, "+")
		}
	}
	require.LessOrEqual(t, count, 14, "request %d shows more than the window", n)
	return line
}

func brief(t *testing.T, c llm.Call, result string) string {
	t.Helper()
	if name, own := strings.CutPrefix(c.Name, events.ReservedPrefix); own {
		return name
	}
	require.Equal(t, c.Name+" of "+c.Arguments, result)
	var in struct{ N int }
	require.NoError(t, json.Unmarshal([]byte(c.Arguments), &in))
	return fmt.Sprint(c.Name, ":", in.N)
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	lines := strings.Split(got, "\n")
	for i, line := range strings.Split(string(want), "\n") {
		require.Less(t, i, len(lines), "%s has more lines", file)
		require.Equal(t, line, lines[i], "line %d of %s; run: go test ./sim -run TestALongConversation -update, and read what changed", i+1, file)
	}
	require.Len(t, lines, strings.Count(string(want), "\n")+1)
}
