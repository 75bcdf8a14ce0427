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
// A user's own program needs no other package for an agent's run. Own tools are in
// package tool, own models in package llm, processes that run tools alone in package
// actor.
package agent
