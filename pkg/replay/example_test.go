package replay_test

import (
	"context"
	"fmt"
	"log"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/replay"
)

// open opens a file that "moorebus export" wrote.
func open(name string) *replay.File {
	f, err := replay.OpenFile("../../testdata/runs/" + name + ".jsonl")
	if err != nil {
		log.Fatal(err)
	}
	return f
}

// builtIn folds runs of the built-in graph.
var builtIn = reducer.NewMachine(reducer.MachineOptions{})

// Every event of a run, with the memory after it.
func ExampleSteps() {
	f := open("approval_rejected")
	defer func() { _ = f.Close() }()
	for step, err := range replay.Steps(context.Background(), f, builtIn, f.Runs()[0]) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(step.Event.N, step.Event.Type(), "->", step.Memory.State)
	}
	// Output:
	// 1 Start -> planning
	// 2 HumanApprovalRequired -> waiting_for_human
	// 3 HumanRejected -> observing
	// 4 Continue -> planning
	// 5 LlmFinalAnswer -> done
}

// What was known after the second event of a run.
func ExampleFold() {
	f := open("approval_rejected")
	defer func() { _ = f.Close() }()
	mem, err := replay.Fold(context.Background(), f, builtIn, f.Runs()[0], 2)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(mem.State, mem.PendingApproval.Requests[0].Tool)
	// Output: waiting_for_human pay
}

// Where a fork and the run that it was forked from part.
func ExampleDiff() {
	f := open("fork_patched")
	defer func() { _ = f.Close() }()
	runs := f.Runs()
	d, err := replay.Diff(context.Background(), builtIn, f, runs[0], f, runs[1])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("they share", d.Common.N, "events")
	fmt.Println("a:", d.A)
	fmt.Println("b:", d.B)
	// Output:
	// they share 2 events
	// a: HumanRejected, waiting_for_human -> observing
	// b: HumanApproved, waiting_for_human -> acting
}

// A run in whose log a stored event was changed.
func ExampleVerify() {
	f := open("broken_body_changed")
	defer func() { _ = f.Close() }()
	findings, err := replay.Verify(context.Background(), f, builtIn)
	if err != nil {
		log.Fatal(err)
	}
	for _, found := range findings {
		fmt.Printf("event %d: %s: %s\n", found.N, found.Outcome, found.Reason)
	}
	// Output: event 4: diverged: prev does not match the hash of event 3
}

// What a model said in a run that ended, said again to a new one: no model is asked.
func ExampleModel() {
	ctx := context.Background()
	f := open("chat_unfinished")
	defer func() { _ = f.Close() }()
	recorded, err := replay.Model(ctx, f, builtIn, f.Runs()[0])
	if err != nil {
		log.Fatal(err)
	}
	a, err := agent.New("host").LLM(recorded).Build()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(a.Run(ctx, "Hello."))
	// Output: Hello to you. <nil>
}
