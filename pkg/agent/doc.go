// Package agent makes agents of Go values and runs them.
//
// The least that an agent needs is a task and a model:
//
//	a, err := agent.New("What is 6 times 7?").
//		LLM(model).
//		Tool(agent.Func("multiply", "Multiplies two numbers.", multiply, agent.Pure)).
//		Build()
//	answer, err := a.Run(ctx)
//
// [Agent.Run] runs the task to its end. [Agent.Start] gives the [Run] at once: to
// watch it, to talk to it in chat mode, to decide on its calls. Every run is a log
// of events, on a server inside the process unless the agent is given a bus
// ([Builder.Data], [Builder.NATS], [Builder.Conn], [Builder.Bus]); so one whose
// process died is carried on by [Agent.Resume], and [Agent.Stepwise] goes through
// one event by event.
//
// A [Graph] adds states, events, transitions, ends and memory of one's own.
// [Builder.OnOutput] shows what happens as it does. [Serve] puts several agents on
// one server.
//
// [Host] is below all that: every role in one process, on a bus that is there.
package agent
