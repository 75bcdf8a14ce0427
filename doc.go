// Package moorebus is a tour of Moorebus: LLM agents as event logs on NATS
// JetStream. Every transition of an agent is one event on a stream; a pure
// reducer folds a run's events into its memory; workers consume the events that
// enter their states and append the next one. The package holds no code. It is
// read from the bottom up, and each package only knows those before it (a test
// beside this file says so).
//
// # The vocabulary
//
// [github.com/moorebus/moorebus/pkg/events] says what can happen to an agent
// and how it is written down: event types and their payloads, the CloudEvents
// envelope, the hash chain, subjects and filters, upcasters for old payloads.
// It has no clock, no randomness and no I/O.
//
// # The core
//
// [github.com/moorebus/moorebus/pkg/reducer] is a Moore machine. A transition
// table says which event may follow in which state; the fold turns events into
// Memory; Effects says what a memory wants done, by keys that never contain the
// attempt; View is what a model is shown of it. An event that is not legal is
// never skipped: it poisons its run, and only the run.
//
// # The ports
//
// [github.com/moorebus/moorebus/pkg/journal] is where events are stored, read,
// followed and delivered; [github.com/moorebus/moorebus/pkg/llm] is a model,
// [github.com/moorebus/moorebus/pkg/tool] a tool. Each comes with a suite that
// every adapter has to pass.
//
// # The adapters
//
// Under each port lie its adapters, which do not know each other:
// pkg/journal/natsbus is JetStream (and the one package that knows its API),
// pkg/journal/filelog a file of JSON lines, pkg/journal/simulated a log in
// memory that delays, repeats, reorders and crashes by a seed. The models are
// openai, anthropic, scripted and recorded; the tools are functions, builtins, HTTP and
// subprocesses. pkg/embedded runs a NATS server inside the process,
// pkg/agentfile reads definitions of agents and tools, pkg/approval evaluates
// approval policies.
//
// # The loop
//
// [github.com/moorebus/moorebus/pkg/runlog] keeps runs in memory as their logs
// stand and is the one way to append to them: always on condition that nothing
// else was appended meanwhile. [github.com/moorebus/moorebus/pkg/worker] is the
// one loop: deliver, fold, ask whether the effect is still due, handle, append,
// acknowledge. It holds no business logic.
//
// # The roles
//
// The planner calls models, the actor runs tools, the observer commits results,
// the gateway lets the outside in, and replay reads. Each is a package under
// pkg with New(Config) and Run(ctx), each owns its states and its credentials,
// and none imports another: they meet on the bus alone.
//
// # The programs
//
// [github.com/moorebus/moorebus/pkg/agent] puts all roles into one process, for
// programs that want an agent rather than a deployment. The mains under cmd
// only wire: cmd/moorebus is the one binary to start with, the others are the
// same roles to be scaled one by one. ARCHITECTURE.md has the table of who
// continues a run when a process dies.
package moorebus
