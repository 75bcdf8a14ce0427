package docschema

import (
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool"
)

// toolName is the pattern of the names of tools in a tool file.
const toolName = "^[A-Za-z0-9_.-]{0,64}$"

// emptyOr allows a text to be empty.
func emptyOr(pattern string) string { return "^(" + strings.Trim(pattern, "^$") + ")?$" }

var (
	risks   = choice(tool.Low, tool.Medium, tool.High, tool.Critical)
	effects = choice(tool.Pure, tool.Idempotent, tool.Once)
)

// toolKeys are the keys of a tool file.
var toolKeys = []key{
	{"tools", "The tools. Each is exactly one of http, exec, builtin, agent, handoff, a2a and service.", nil},
	{"tools[].name", "The tool's name. Default: that of its builtin or agent.", []limit{named(toolName)}},
	{"tools[].description", "What the tool does, for the model. A builtin has its own.", nil},
	{"tools[].schema", "The JSON Schema of the arguments. A builtin has its own.", []limit{mapping}},
	{"tools[].http", "A tool behind a URL. The request's body is the arguments, and a 2xx answer's body the result.", nil},
	{"tools[].http.url", "The URL; ${NAME} and ${NAME:-default} are environment variables.", []limit{there}},
	{"tools[].http.method", "The method. Default: POST.", []limit{named(toolName)}},
	{"tools[].http.headers", "Headers of each request; variables as in the URL.", nil},
	{"tools[].exec", "A tool that is a program. It reads the arguments on stdin and writes the result to stdout.", nil},
	{"tools[].exec.command", "The program and its arguments.", []limit{there, func(s *jsonschema.Schema) { s.MinItems = jsonschema.Ptr(1) }}},
	{"tools[].exec.env", "The program's entire environment; variables as in a URL.", nil},
	{"tools[].exec.dir", "The directory that it runs in.", nil},
	{"tools[].builtin", "The name of a tool that Moorebus includes. memory adds the five memory tools.", []limit{example("calculator", "memory", "read_file", "http_get", "ask_human")}},
	{"tools[].agent", "A stored agent that answers the calls.", []limit{named(emptyOr(name))}},
	{"tools[].handoff", "A stored agent that takes over the conversation.", []limit{named(emptyOr(name))}},
	{"tools[].service", "A NATS service whose tools are added. Its metadata has the other settings; only pool may be given with it.", []limit{named("^[A-Za-z0-9_-]*$")}},
	{"tools[].a2a", "The URL of the card of a remote agent that speaks A2A and answers the calls; variables as in the URL of http.", nil},
	{"tools[].headers", "Headers of each request to the agent of a2a; variables as in the URL.", nil},
	{"tools[].effect", "The effect of a repeated call: none (pure), the same as one call (idempotent), or harm (once).", []limit{effects}},
	{"tools[].timeout", "How long a call may take, such as 30s.", nil},
	{"tools[].retries", "How often a failed call is tried again.", []limit{least(0)}},
	{"tools[].pool", "The pool of actors that has the tool.", []limit{named(emptyOr(name))}},
	{"tools[].risk", "The risk, for approval policies. Default: low.", []limit{risks}},
	{"tools[].breaker", "The circuit breaker: after several failures in a row the tool is not called for some time.", nil},
	{"tools[].breaker.failures", "How many failures in a row. Default: 5.", []limit{least(0)}},
	{"tools[].breaker.open", "How long the tool is not called then. Default: 30s.", nil},
	{"tools[].breaker.off", "Turn the breaker off.", nil},
	{"tools[].sandbox", "The sandbox of a program: that of Moorebus (strict), Bubblewrap (bwrap) or gVisor (runsc); the latter two must be installed. Only for exec.", []limit{choice("strict", "bwrap", "runsc", "off"), usually("strict")}},
	{"tools[].network", "What a program in a sandbox can reach over the network: nothing (none), or what the host can (host).", []limit{choice("none", "host"), usually("none")}},
	{"tools[].read", "More files and directories that a program in a sandbox may read. It may always read the system's programs and libraries, its directory, and the files that its arguments name. A relative path starts at exec.dir.", nil},
	{"tools[].require", "What the sandbox must have. On a system that lacks one of these, the program is not started.", []limit{members("pidns", "ipcns", "netns", "mountns", "landlock", "seccomp", "cgroup")}},
	{"tools[].memory", "How much memory all processes of a call may have together, such as 512MiB, at least 16MiB. Needs a control group that is delegated to the actor. Default: 2GiB.", []limit{example("512MiB")}},
	{"tools[].processes", "How many processes and threads a call may have at once, as memory. Default: 1024.", []limit{least(1)}},
	{"tools[].root", "The directory that the builtin read_file may read.", nil},
	{"tools[].hosts", "The hosts that the builtin http_get may reach.", nil},
	{"approval", "Which calls of the file's tools wait for a human, in addition to those of an agent's approval. The stricter of the two applies. Default: none.", nil},
	{"approval.policy", "Which calls wait, as in an agent's approval.",
		[]limit{one(events.ApproveNever, events.ApproveAlways, events.ApproveAtLeast, events.ApproveAbove, events.ApproveTools, events.ApproveExpr)}},
	{"approval.risk", "The risk of the policies at_least and above.", []limit{example("low", "medium", "high", "critical")}},
	{"approval.tools", "The tools of the policy tools.", nil},
	{"approval.expr", "The expression of the policy expr, over tool, arguments, risk and run.", []limit{example(`tool == "pay" && arguments.amount > 100`)}},
	{"mcp", "The file of MCP servers whose tools are added: its path, or {file, servers}.", []limit{there}},
	{"mcp.file", "The path of the file, relative to this one.", []limit{there}},
	{"mcp.pinned", "The path of the file of pinned definitions, relative to this one, which `moorebus mcp pin` writes. Tools that are not pinned, or have changed since, are not offered. Default: all tools are offered.", []limit{there}},
	{"mcp.trust_hints", "Whether the annotations of all servers may lower class and risk of their tools. Default: false.", nil},
	{"mcp.servers", "How the tools of a server are offered, by its name.", nil},
	{"mcp.servers.*", "The settings of one server.", nil},
	{"mcp.servers.*.pool", "The pool of the server's tools.", []limit{named(emptyOr(name))}},
	{"mcp.servers.*.risk", "Their risk.", []limit{risks}},
	{"mcp.servers.*.effect", "The effect of a repeated call of them.", []limit{effects}},
	{"mcp.servers.*.timeout", "How long a call may take.", nil},
	{"mcp.servers.*.trust_hints", "Whether the annotations of this server may lower class and risk. Default: mcp.trust_hints.", nil},
	{"mcp.servers.*.tools", "The tools that are offered, by the server's names. Default: all.", nil},
}

// providerKeys are the keys of a provider file, below the names of the providers.
var providerKeys = []key{
	{"providers.*.kind", "The provider's API.", []limit{one(strings.Split(strings.ReplaceAll(providers.Kinds(), " or ", ", "), ", ")...)}},
	{"providers.*.base_url", "The address. Default: the kind's; ${NAME} and ${NAME:-default} are environment variables.", nil},
	{"providers.*.api_key", "The key itself; variables as in the address.", nil},
	{"providers.*.api_key_env", "The environment variable that holds the key.", []limit{named("^([A-Za-z_][A-Za-z0-9_]*)?$")}},
	{"providers.*.api_key_command", "The command, with its arguments, that prints a key that expires; in place of api_key and api_key_env. It runs without a shell.", nil},
	{"providers.*.api_key_ttl", "How long the key of api_key_command is kept. Default: 5m.", nil},
	{"providers.*.model", "The model for agents that name none.", nil},
	{"providers.*.headers", "Headers of each request.", nil},
	{"providers.*.query", "Parameters of the address.", nil},
	{"providers.*.extra_body", "Further keys of each request's body.", nil},
	{"providers.*.like", "A row of the table of models (docs/models.md), for an address that the table lacks.", nil},
	{"providers.*.capabilities", "How this server differs from the table of models (docs/models.md).", nil},
	{"providers.*.max_tokens", "The most tokens of a reply, for agents that do not set it. Only for kind anthropic.", []limit{least(0)}},
}
