// Package mcptool makes tools of the tools of MCP servers.
//
// What [New] makes is a source of a registry (see tool.Source). It keeps one session with
// its server, which is a command that speaks over its standard input and output, or
// a URL of streamable HTTP. A server that does not come up, dies, or stops
// answering is connected to again, with growing pauses; its tools stay announced
// for [Options.Linger] meanwhile, and calls wait for it as long as their timeout
// allows. A call that was
// under way when its session ended fails with code unreachable (outcome_unknown
// where its class is once) and is not made again here.
//
// # Tools
//
// The server's tool t is announced as `server.t`, with what does not fit into a
// name replaced by `_`. Its class and risk come from its annotations, where those
// that are missing have the protocol's defaults:
//
//	readOnlyHint                    pure where openWorldHint is false, else idempotent; risk low
//	idempotentHint                  idempotent, else once
//	destructiveHint false           risk medium, else high
//
// Annotations are what a server says of itself. A server that lies there can have
// a call made twice, or without an approval; [Options.Over] has the last word.
//
// # Results
//
// A result is the text of its parts, one under the other, or the structured
// content where there is no text. What is binary is given to the call's
// tool.KeeperFrom, and the text says where it is. A result with isError is a failure
// with code tool_failed.
//
// # Bounds
//
// Nothing that a server does takes more than a bounded amount of memory or time: a
// message has at most [Options.MaxMessage] bytes and ends the session where it has
// more, a list of tools has at most 1,000 and is read page by page to 4 MiB, once a
// second at most; notifications but that the list has changed are dropped, requests
// that come faster than they are answered end the session, and a call ends with its
// context. Servers may ask nothing of us: sampling, elicitation and roots are
// declined.
//
// # Processes
//
// A command runs in a process group of its own, which is killed when the session
// ends, with what the command started. Only what has left the group, for a session of
// its own, is not: it outlives us. It gets an environment of HOME, LANG, LOGNAME,
// PATH, SHELL, TERM, TMPDIR and USER, where they are set, and of [Options.Env]; the
// other variables of this process, which may be keys, are not passed on. Its
// standard error goes to the log, in lines that are cut and counted.
package mcptool
