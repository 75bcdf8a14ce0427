// Package controltest holds what tests of the gateway's control and of its HTTP share: a
// real bus, and a world that appends to runs as the other roles do.
package controltest

import (
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Patience bounds what a test waits for; nothing takes that long.
const Patience = time.Minute

// SearchTool is the tool that [Called] calls.
var SearchTool = events.ToolSpec{
	Name: "search", Description: "Searches.", Schema: json.RawMessage(`{"type":"object"}`), Effect: "pure", Pool: "default", Risk: "low",
}

// NATS starts a server for the test and opens a bus on it. Streams are in memory.
func NATS(t testing.TB, o natsbus.InitOptions) *natsbus.Bus {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(server.Shutdown)
	conn, err := server.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	o.Memory = true
	require.NoError(t, natsbus.Init(t.Context(), conn, o))
	b, err := natsbus.Open(t.Context(), conn, natsbus.Options{Logger: quiet, RequestTimeout: Patience})
	require.NoError(t, err)
	return b
}

// World is the rest of an installation around the gateway under test.
type World struct {
	T   testing.TB
	Bus journal.Bus
	// Directory has what the other roles announce.
	Directory *announce.Directory
	// Store is that of the other roles.
	Store *runlog.Store
}

// NewWorld returns the world of a bus.
func NewWorld(t testing.TB, b journal.Bus) World {
	return World{T: t, Bus: b, Directory: announce.NewDirectory(b, nil), Store: runlog.New(runlog.Options{Log: b})}
}

// At returns where a run of the default namespace is.
func (w World) At(id string) events.Run { return w.Store.Place(events.DefaultNamespace, id) }

// Happens appends events out of a state, as the state's worker does.
func (w World) Happens(id string, origin events.State, payloads ...events.Payload) {
	w.T.Helper()
	run := w.Store.Acquire(w.At(id))
	defer w.Store.Release(run)
	run.Lock()
	defer run.Unlock()
	require.NoError(w.T, run.Refresh(w.T.Context()))
	for _, p := range payloads {
		done, err := run.Commit(w.T.Context(), runlog.Stamp{Source: "moorebus/test/1"}, func(*reducer.Memory) ([]runlog.Draft, error) {
			return []runlog.Draft{{Origin: origin, Payload: p}}, nil
		})
		require.NoError(w.T, err)
		require.True(w.T, done)
	}
}

// Records returns the run's stored records.
func (w World) Records(id string) []journal.Record {
	w.T.Helper()
	var all []journal.Record
	for rec, err := range w.Bus.Read(w.T.Context(), w.At(id), 0) {
		require.NoError(w.T, err)
		all = append(all, rec)
	}
	return all
}

// Fold returns the run's memory. Every record must be legal.
func (w World) Fold(id string) *reducer.Memory {
	w.T.Helper()
	m := reducer.NewMachine(reducer.MachineOptions{})
	mem := m.Initial(id)
	for _, rec := range w.Records(id) {
		_, err := m.Apply(mem, rec.Subject, rec.Body)
		require.NoError(w.T, err)
	}
	return mem
}

// Types returns the types of the run's events.
func (w World) Types(id string) []string {
	w.T.Helper()
	var types []string
	for _, rec := range w.Records(id) {
		types = append(types, TypeOf(w.T, rec))
	}
	return types
}

// TypeOf returns the type of a record's event.
func TypeOf(t testing.TB, rec journal.Record) string {
	t.Helper()
	e, err := new(events.Codec).Decode(rec.Body)
	require.NoError(t, err)
	return string(e.Type())
}

// Forge stores the body of a legal next event of the run on another publisher's subject.
func Forge(t testing.TB, log journal.Log, run events.Run, origin events.State, p events.Payload, from, to events.State) {
	t.Helper()
	machine := reducer.NewMachine(reducer.MachineOptions{})
	fold, seq := runlog.NewFold(log, machine, run), uint64(0)
	for rec, err := range log.Read(t.Context(), run, 0) {
		require.NoError(t, err)
		_, err = fold.Apply(t.Context(), rec)
		require.NoError(t, err)
		seq = rec.Seq
	}
	_, e, err := machine.Draft(fold.Memory(), run, origin, p, reducer.Stamp{ID: runlog.NewID(), Source: "moorebus/test/1", Time: time.Now()})
	require.NoError(t, err)
	body, err := machine.Codec().Encode(e)
	require.NoError(t, err)
	subject := events.Subject{Run: run, From: from, To: to, Pool: events.DefaultPool}
	_, err = log.Append(t.Context(), run, seq, journal.Entry{Subject: subject, Body: body})
	require.NoError(t, err)
}

// Answered is a final answer.
func Answered(text string) *events.LLMFinalAnswer {
	return &events.LLMFinalAnswer{MessageID: "m-" + text, Reply: events.Reply{Content: text}}
}

// TurnDone is the answer to one turn of a chat.
func TurnDone(text string) *events.LLMMessageComplete {
	return &events.LLMMessageComplete{MessageID: "m-" + text, Reply: events.Reply{Content: text}}
}

// Called is a reply that calls [SearchTool] under each of the ids.
func Called(ids ...string) events.ToolCallReply {
	reply := events.ToolCallReply{Confidence: 1}
	for _, id := range ids {
		reply.Calls = append(reply.Calls, events.Call{ID: id, Name: SearchTool.Name, Arguments: "{}"})
	}
	return reply
}

// Waiting is a request for approval of calls of a tool, before a deadline if there is one.
// Humans are asked about the calls in asked only, or about all if there are none.
func Waiting(deadline, tool string, calls []string, asked ...string) *events.HumanApprovalRequired {
	p := &events.HumanApprovalRequired{ToolCallReply: events.ToolCallReply{Confidence: 1}, Deadline: deadline}
	if len(asked) == 0 {
		asked = calls
	}
	for _, id := range calls {
		p.Calls = append(p.Calls, events.Call{ID: id, Name: tool, Arguments: `{"amount":1}`})
	}
	for _, id := range asked {
		p.Requests = append(p.Requests, events.Request{CallID: id, Tool: tool, Arguments: `{"amount":1}`, Risk: "high", Reason: "always"})
	}
	return p
}
