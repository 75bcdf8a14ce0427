// Package moorebus describes the packages of Moorebus, which runs LLM agents as event logs on
// NATS JetStream. It contains no code. The list goes from the bottom up: a package imports only
// those before it, which layers_test.go checks.
//
// # The vocabulary
//
// [github.com/moorebus/moorebus/pkg/events] defines what can happen to an agent and how it is
// stored: event types and their payloads, the CloudEvents envelope, the chain of hashes,
// subjects and filters, and upcasters for old payloads. It has no clock, no randomness and no
// I/O.
//
// # The core
//
// [github.com/moorebus/moorebus/pkg/reducer] is a Moore machine. Its transition table lists the
// events that may follow in each state. The fold turns events into Memory. View is what the model
// is sent. An illegal event is never skipped: it poisons its run, and no other run. Two packages
// derive more from a memory: internal/effects lists the work that it wants done, and
// internal/callname names its calls.
//
// # The ports
//
// [github.com/moorebus/moorebus/pkg/journal] stores, reads, follows and delivers events.
// [github.com/moorebus/moorebus/pkg/llm] is a model, and
// [github.com/moorebus/moorebus/pkg/tool] is a tool.
// [github.com/moorebus/moorebus/internal/tokens] counts the tokens of a text. Each port has a
// test suite that its adapters pass.
//
// # The adapters
//
// The adapters of a port do not import each other:
//
//   - Logs: internal/natsbus (JetStream), internal/filelog (a file of JSON lines), and for tests
//     internal/journaltest/simtest (a log in memory that delays, repeats, reorders and crashes by
//     a seed).
//   - Models: pkg/llm/openai, pkg/llm/anthropic, pkg/llm/scripted and, from a log, pkg/replay.
//     internal/textprotocol serves models without tool calls, and internal/prices has their
//     prices.
//   - Tools: Go functions (pkg/tool/typed), built-in tools (pkg/tool/builtin), HTTP endpoints
//     (pkg/tool/httptool), commands (pkg/tool/exectool), MCP servers (pkg/tool/mcptool),
//     NATS services (pkg/tool/servicetool) and agents that speak A2A (pkg/tool/a2atool).
//     internal/toolset runs calls, except to a tool that is down. internal/schema checks their
//     arguments.
//   - Tokens: internal/tokens/o200k.
//
// pkg/embedded runs a NATS server in the process. internal/agentfile reads the definitions of
// agents and tools. internal/approval evaluates approval policies.
//
// # The loop
//
// [github.com/moorebus/moorebus/internal/runlog] keeps folded runs in memory. It is the only way
// to append to a run, and appends only if the run has not changed since it was read.
// [github.com/moorebus/moorebus/internal/worker] is the loop of all roles: deliver, fold, check
// whether the effect is still due, handle, append, acknowledge. It contains no business logic.
//
// # What roles share
//
// [github.com/moorebus/moorebus/internal/runstart] pins what a run needs and starts it.
// [github.com/moorebus/moorebus/internal/toolcall] checks approvals and bounds results.
// [github.com/moorebus/moorebus/internal/runstream] formats what a run does.
//
// # The roles
//
// The planner calls models. The actor runs tools. The package subagent answers calls by runs of
// other agents. The observer commits results. The package control carries out commands on runs,
// and httpapi serves them over HTTP. The package custom serves the states of an application's own
// graph. Each role is a package under internal with New(Config) and Run(ctx). It owns its states
// and its credentials. Roles do not import each other and communicate only over the bus. The
// packages verify, transfer and retention do not serve states: they check, export, import and
// purge runs.
//
// # The programs
//
// [github.com/moorebus/moorebus/pkg/agent] runs all roles in one process, for programs that need
// an agent rather than a deployment. [github.com/moorebus/moorebus/pkg/actor] runs an
// application's own actor, and [github.com/moorebus/moorebus/pkg/replay] reads logs. The mains
// under cmd only connect packages: cmd/moorebus is the one binary to start with, and the others
// are single roles. ARCHITECTURE.md has the table of who continues a run when a process dies.
// docs/parity.md names the test that shows each requirement.
package moorebus
