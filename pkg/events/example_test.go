package events_test

import (
	"fmt"
	"log"

	"github.com/moorebus/moorebus/pkg/events"
)

// The subject of an event is the edge that the event takes.
func ExampleParseSubject() {
	s, err := events.ParseSubject("moore.0.default.acting.observing.default.019325a0-0000-7000-8000-000000000007")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(s.From, "->", s.To, "in pool", s.Pool)
	// Output: acting -> observing in pool default
}

// A run lies in one shard, which follows from its id.
func ExampleNewRun() {
	run := events.NewRun(events.DefaultNamespace, "019325a0-0000-7000-8000-000000000007", 8)
	fmt.Println(run.Filter())
	// Output: moore.4.default.*.*.*.019325a0-0000-7000-8000-000000000007
}

// The defaults of an agent, and what is wrong with a definition.
func ExampleAgent_Resolve() {
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider = "clerk", "openai"
	resolved, err := a.Resolve()
	fmt.Println(resolved.Config.MaxSteps, err)
	a.Config.MaxSteps = 0
	_, err = a.Resolve()
	fmt.Println(err)
	// Output:
	// 15 <nil>
	// config.max_steps: must be at least 1, is 0
}
