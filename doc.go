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
// every adapter has to pass. [github.com/moorebus/moorebus/internal/tokens] says how
// large a text is to a model.
//
// # The adapters
//
// Under each port lie its adapters, which do not know each other:
// internal/natsbus is JetStream (only it and internal/natsbus/api know its API),
// internal/filelog a file of JSON lines, internal/journaltest/simtest a log in
// memory that delays, repeats, reorders and crashes by a seed. The models are
// pkg/llm/openai, anthropic, scripted and recorded; textprotocol lets any of them
// do without tool calls, prices says what they cost. The tools are Go functions
// (pkg/tool/typed), builtin ones, HTTP endpoints (httptool), commands (exectool)
// and those of MCP servers (mcptool); schema checks their arguments, breaker keeps
// calls from those that are down. internal/tokens/o200k counts tokens. pkg/embedded
// runs a NATS server inside the process, internal/agentfile reads definitions of agents
// and tools, internal/approval evaluates approval policies.
//
// # The loop
//
// [github.com/moorebus/moorebus/internal/runlog] keeps runs in memory as their logs
// stand and is the one way to append to them: always on condition that nothing
// else was appended meanwhile. [github.com/moorebus/moorebus/internal/worker] is the
// one loop: deliver, fold, ask whether the effect is still due, handle, append,
// acknowledge. It holds no business logic.
//
// # What roles have in common
//
// [github.com/moorebus/moorebus/internal/launch] pins what a run needs and opens it;
// [github.com/moorebus/moorebus/internal/toolcall] guards what had to be approved and
// gives results their form; [github.com/moorebus/moorebus/internal/output] tells what a
// run does as things to show.
//
// # The roles
//
// The planner calls models, the actor runs tools, subagent has runs of other
// agents answer calls, the observer commits results, the gateway lets the outside
// in, and custom serves the states of an application's own graph. Each is a package
// under pkg with New(Config) and Run(ctx), each owns its states and its
// credentials, and none imports another: they meet on the bus alone. So do replay,
// which reads runs and checks them, and retention, which exports, imports and
// purges them.
//
// # The programs
//
// [github.com/moorebus/moorebus/pkg/agent] puts all roles into one process, for
// programs that want an agent rather than a deployment. The packages under
// internal are what the commands are made of, and the mains under cmd only wire:
// cmd/moorebus is the one binary to start with, the others are the same roles to
// be scaled one by one. ARCHITECTURE.md has the table of who continues a run when a
// process dies, docs/parity.md the test that shows each requirement.
package moorebus
