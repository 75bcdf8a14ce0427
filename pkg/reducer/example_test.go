package reducer_test

import (
	"fmt"
	"log"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// A run is the fold of its events: the machine drafts the next one and applies it.
func ExampleMachine_Apply() {
	machine := reducer.NewMachine(reducer.MachineOptions{})
	run := events.NewRun(events.DefaultNamespace, "019325a0-0000-7000-8000-000000000007", 1)
	mem := machine.Initial(run.ID)
	def := events.DefaultAgent()
	def.Name, def.LLM.Provider = "clerk", "openai"
	def, err := def.Resolve()
	if err != nil {
		log.Fatal(err)
	}
	start := &events.Start{Task: "Say hello.", TaskType: "default", TableHash: machine.Table().Hash(), AgentHash: events.Hash([]byte("clerk")), Tools: []events.ToolSpec{}}
	start.Agent, start.Mode = def, def.Mode
	subject, event, err := machine.Draft(mem, run, events.Idle, start, reducer.Stamp{
		ID: "019325a0-1000-7000-8000-000000000001", Source: "moorebus/gateway/example", Time: time.Unix(1763629200, 0).UTC(),
	})
	if err != nil {
		log.Fatal(err)
	}
	body, err := machine.Codec().Encode(event)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := machine.Apply(mem, subject.String(), body); err != nil {
		log.Fatal(err)
	}
	fmt.Println(mem.N, mem.State, mem.Task)
	// Output: 1 planning Say hello.
}

// Where an event leads, by the built-in table.
func ExampleTable_Next() {
	to, ok := reducer.DefaultTable().Next(events.Acting, events.TypeToolSuccess)
	fmt.Println(to, ok)
	_, ok = reducer.DefaultTable().Next(events.Done, events.TypeToolSuccess)
	fmt.Println(ok)
	// Output:
	// observing true
	// false
}
