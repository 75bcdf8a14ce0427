package sim

import (
	"strings"
	"testing"

	"github.com/moorebus/moorebus/pkg/events"
)

// remember is a reply that calls one tool of memory.
func remember(name, tags, value string) scriptEntry {
	arguments := map[string]string{"tags": tags}
	if value != "" {
		arguments["value"] = value
	}
	return scriptEntry{"calls": []scriptEntry{{"name": name, "arguments": arguments}}}
}

func small(a *events.Agent) { a.Config.PagingLimit, a.Config.HardLimit = 50, 1000 }

var (
	tooMuch = strings.Repeat("word ", 200)
	adding  = remember("working_memory_add", "note", tooMuch)
	saving  = remember("storage_save", "note", "kept")
)

const rowRemembered = "WorkingMemoryAdded, WorkingMemoryRemoved, StorageSaved, StorageLoaded"

// memoryCases are about working memory, storage and paging.
var memoryCases = []*livenessCase{
	{row: rowObserved, event: events.TypeNeedsPaging, from: events.Observing, agent: small, script: script(adding), then: itself},
	{row: rowDone, event: events.TypePageDone, from: events.Paging, agent: small, script: script(adding), then: itself},
	{row: rowDone, name: "while storage is away", event: events.TypePageDone, from: events.Paging, agent: small, script: script(adding), then: itself,
		change: func(s *scenario) { s.Faults.Bucket = 0.3 }},
	{row: rowRemembered, event: events.TypeWorkingMemoryAdded, from: events.Acting, script: script(adding), then: held},
	{row: rowRemembered, event: events.TypeWorkingMemoryRemoved, from: events.Acting, script: script(adding, remember("working_memory_remove", "note", "")), then: held},
	{row: rowRemembered, event: events.TypeStorageSaved, from: events.Acting, script: script(saving), then: held},
	{row: rowRemembered, event: events.TypeStorageLoaded, from: events.Acting, script: script(saving, remember("storage_load", "note", "")), then: held},
	{row: rowRemembered, name: "in a batch", event: events.TypeStorageSaved, from: events.ParallelActing, then: "ToolCallDispatched",
		script: script(scriptEntry{"calls": []scriptEntry{{"name": "look", "arguments": map[string]int{"n": 1}}, saving["calls"].([]scriptEntry)[0]}})},
}

// The invariant sees an entry that is nowhere.
func TestForgottenEntriesAreSeen(t *testing.T) {
	l := newLog(t)
	l.w.scenario.Runs = []runSpec{{ID: l.run.ID}}
	l.w.scenario.Runs[0].Agent.Name = "simulated"
	l.add(rolePlanner, events.Planning, &events.LLMToolCall{ToolCallReply: oneReply("pay")})
	l.add(roleActor, events.Acting, &events.StorageSaved{Entry: events.Entry{Tags: []string{"a"}, Value: "v"}})
	if v := l.w.remembered(); v == nil || v.Invariant != "storage" {
		t.Fatalf("nothing was seen: %v", v)
	}
}
