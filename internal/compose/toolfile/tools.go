// Package toolfile makes the tools of a tool file, each with its adapter: what an actor runs.
package toolfile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/mcppins"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/internal/script"
	"github.com/moorebus/moorebus/internal/subagent"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/a2atool"
	"github.com/moorebus/moorebus/pkg/tool/builtin"
	"github.com/moorebus/moorebus/pkg/tool/exectool"
	"github.com/moorebus/moorebus/pkg/tool/httptool"
	"github.com/moorebus/moorebus/pkg/tool/mcptool"
	"github.com/moorebus/moorebus/pkg/tool/servicetool"
	"github.com/nats-io/nats.go"
)

// Tools makes the registry of a tool file, and returns the secrets in it: the values
// of headers and of commands' environments, which must not reach the log. Variables
// of the file are read from the environment.
//
// The tools of its MCP servers, A2A agents and NATS services appear after the registry is started, see
// [Connect].
func Tools(file *agentfile.ToolFile) (*toolset.Registry, []string, error) {
	if err := file.Expand(os.LookupEnv); err != nil {
		return nil, nil, err
	}
	tools := make([]tool.Tool, 0, len(file.Tools))
	var sources []tool.Source
	var secrets []string
	var boxes sandboxes
	for i := range file.Tools {
		entry := &file.Tools[i]
		if entry.OfAgent() {
			continue // nothing runs here: see [Subagents]
		}
		if entry.A2A != "" {
			agent, err := a2atool.New(a2atool.Options{URL: entry.A2A, Headers: entry.Headers, Over: entry.Definition()})
			if err != nil {
				return nil, nil, err
			}
			sources, secrets = append(sources, agent), append(secrets, entrySecrets(entry)...)
			continue
		}
		made, err := oneTool(entry, boxes.of(entry))
		if err != nil {
			return nil, nil, fmt.Errorf("tool %q: %w", entry.Name, err)
		}
		tools = append(tools, made)
		secrets = append(secrets, entrySecrets(entry)...)
	}
	servers, hidden, err := mcpServers(file.MCP, &boxes)
	if err != nil {
		return nil, nil, err
	}
	if len(file.Services) > 0 || file.AllServices {
		services, err := serviceSource(file)
		if err != nil {
			return nil, nil, err
		}
		servers = append(servers, services)
	}
	boxes.say(slog.Default())
	if err := approval.New().Check(file.Approval.Of()); err != nil {
		return nil, nil, err
	}
	registry, err := newRegistry(toolApproval(file), tools, append(sources, servers...)...)
	return registry, append(secrets, hidden...), err
}

// toolApproval returns the policy that the file's tools have; nil: none.
func toolApproval(file *agentfile.ToolFile) *tool.Approval {
	if file == nil || file.Approval == nil {
		return nil
	}
	a := file.Approval
	return &tool.Approval{Policy: string(a.Policy), Risk: tool.Risk(a.Risk), Tools: a.Tools, Expr: a.Expr}
}

// serviceSource makes the source of a file's NATS services.
func serviceSource(file *agentfile.ToolFile) (tool.Source, error) {
	o := servicetool.Options{All: file.AllServices}
	for _, s := range file.Services {
		o.Services = append(o.Services, servicetool.Service{Name: s.Service, Pool: s.Pool})
	}
	return servicetool.New(o)
}

// onBus is the source of NATS services, which needs a connection.
type onBus interface{ Use(conn *nats.Conn) }

// Connect gives the sources of a registry that has not been started the connection to the
// bus, on which they find NATS services.
func Connect(registry *toolset.Registry, conn *nats.Conn) {
	for _, s := range registry.Sources() {
		if services, ok := s.(onBus); ok {
			services.Use(conn)
		}
	}
}

// serverWait is how long a process waits for its MCP servers and NATS services before it
// takes calls.
const serverWait = 15 * time.Second

// AwaitTools waits until each source of a started registry has listed its tools or has
// proved unreachable, but not longer than serverWait. Calls that come earlier
// would wait for their sources.
func AwaitTools(ctx context.Context, registry *toolset.Registry, logger *slog.Logger) {
	waiting, stop := context.WithTimeout(ctx, serverWait)
	defer stop()
	if !registry.Ready(waiting) && ctx.Err() == nil {
		logger.Warn("not all MCP servers and NATS services are up yet; their tools follow later", "waited", serverWait)
	}
}

// newRegistry makes a registry whose tools have circuit breakers, and their own policy; nil: none.
func newRegistry(own *tool.Approval, tools []tool.Tool, sources ...tool.Source) (*toolset.Registry, error) {
	return toolset.NewWith(toolset.Options{Breakers: true, Sources: sources, Approval: own}, tools...)
}

// Builtins makes the registry of the builtin tools that need no settings.
func Builtins() (*toolset.Registry, error) {
	var tools []tool.Tool
	for _, name := range append([]string{builtin.AskHuman, builtin.Calculator, builtin.CurrentTime}, builtin.MemoryNames()...) {
		made, err := builtin.New(name, builtin.Options{})
		if err != nil {
			return nil, err
		}
		tools = append(tools, made)
	}
	return newRegistry(nil, tools)
}

func oneTool(e *agentfile.ToolEntry, sandbox []string) (tool.Tool, error) {
	def := e.Definition()
	def.Sandbox = sandbox
	if len(def.Schema) > 0 {
		if err := schema.Check(def.Schema); err != nil {
			return nil, fmt.Errorf("schema: %w", err)
		}
	}
	switch {
	case e.HTTP != nil:
		return httptool.New(def, httptool.Options{URL: e.HTTP.URL, Method: e.HTTP.Method, Headers: e.HTTP.Headers})
	case e.Exec != nil:
		return exectool.New(def, exectool.Options{
			Command: e.Exec.Command, Dir: e.Exec.Dir, Env: environment(e.Exec.Env), Sandbox: exectool.Sandbox(e.Sandbox),
			Network: exectool.Network(e.Network), Read: e.Read, Require: e.Require, Memory: int64(e.Memory), Processes: e.Processes,
			Logger: slog.Default(), // it hears of what changed since the start
		})
	}
	made, err := builtin.New(e.Builtin, builtin.Options{Root: e.Root, Hosts: e.Hosts})
	if err != nil {
		return nil, err
	}
	return tool.Redefine(made, def), nil
}

func environment(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}

// shortestSecret is the least length of a value that is removed from results as a
// secret. Shorter values occur in any text.
const shortestSecret = 8

// headerSecrets returns the values of headers, and the token of one such as `Bearer TOKEN`.
func headerSecrets(headers map[string]string) (values []string) {
	for _, value := range headers {
		values = append(values, value)
		if _, token, found := strings.Cut(value, " "); found {
			values = append(values, token)
		}
	}
	return values
}

// urlSecrets returns the password of a URL, and what variables put into it but for its scheme and
// host, each also as it stands in a URL. What the file itself says is no secret.
func urlSecrets(text string, filled []string) (values []string) {
	u, err := url.Parse(text)
	if err != nil || text == "" {
		return nil
	}
	password, _ := u.User.Password()
	for _, value := range append(filled, password) {
		if !strings.Contains(u.Scheme+"://"+u.Host, value) && !strings.Contains(value, u.Host) {
			values = append(values, value, url.QueryEscape(value), url.PathEscape(value))
		}
	}
	slices.Sort(values)
	return slices.Compact(values)
}

func entrySecrets(e *agentfile.ToolEntry) []string {
	values := append(headerSecrets(e.Headers), urlSecrets(e.A2A, e.Filled)...)
	if e.HTTP != nil {
		values = append(values, headerSecrets(e.HTTP.Headers)...)
		values = append(values, urlSecrets(e.HTTP.URL, e.Filled)...)
	}
	if e.Exec != nil {
		values = slices.AppendSeq(values, maps.Values(e.Exec.Env))
	}
	return slices.DeleteFunc(values, func(v string) bool { return len(v) < shortestSecret })
}

// ActorTools makes the registry of an actor: the tools of the file, which may hold an
// agent too, or the builtins without a file; with services, the tools of all NATS services
// besides. A pool without a tool is an error, unless services may have one.
func ActorTools(file string, pools []string, services bool) (*toolset.Registry, []string, error) {
	var registry *toolset.Registry
	var secrets []string
	HideFiles(file)
	if file == "" {
		var err error
		if registry, secrets, err = LocalTools(&agentfile.ToolFile{AllServices: services}); err != nil {
			return nil, nil, err
		}
	} else {
		docs, err := agentfile.ReadFile(file, agentfile.Options{CheckScript: script.Check, CheckSchema: schema.Check})
		if err != nil {
			return nil, nil, err
		}
		if docs.Tools == nil {
			return nil, nil, fmt.Errorf("%s: holds no tools; a tool file has the key `tools`", file)
		}
		docs.Tools.AllServices = services
		if registry, secrets, err = Tools(docs.Tools); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	isServices := func(s tool.Source) bool { _, is := s.(onBus); return is }
	if slices.ContainsFunc(registry.Sources(), isServices) {
		return registry, secrets, nil // their metadata may name any pool
	}
	for _, pool := range pools {
		if pool == events.ClientPool {
			return nil, nil, fmt.Errorf("--pool: %w", agentfile.ErrClientPool)
		}
		if pool != events.AgentsPool && !slices.Contains(registry.Pools(), pool) {
			return nil, nil, fmt.Errorf("--pool %s: none of the tools belongs to it; the pools are %v", pool, registry.Pools())
		}
	}
	return registry, secrets, nil
}

// mcpServers makes the sources of a file of MCP servers, and returns the secrets in it.
func mcpServers(m *agentfile.MCP, boxes *sandboxes) ([]tool.Source, []string, error) {
	if m == nil {
		return nil, nil, nil
	}
	HideFiles(m.File)
	all, secrets, err := MCPServers(m)
	if err != nil {
		return nil, nil, err
	}
	if m.Pinned != "" {
		HideFiles(m.Pinned)
		if _, err := mcppins.Read(m.Pinned); err != nil { // before the first server starts
			return nil, nil, fmt.Errorf("mcp.pinned: %w; review the servers' tools with `moorebus mcp diff`, and pin them with `moorebus mcp pin`", err)
		}
	}
	var sources []tool.Source
	var errs []error
	for _, o := range all {
		made, err := mcptool.New(o)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", m.File, err))
			continue
		}
		if len(o.Command) > 0 {
			boxes.free = append(boxes.free, "MCP server "+o.Name)
		}
		sources = append(sources, made)
	}
	return sources, secrets, errors.Join(errs...)
}

// MCPServers returns the servers of a tool file's key mcp, and the secrets in them. It reports
// keys of other programs on standard error.
func MCPServers(m *agentfile.MCP) (all []mcptool.Options, secrets []string, err error) {
	servers, notes, err := agentfile.ReadMCP(m.File, os.LookupEnv)
	if err != nil {
		return nil, nil, fmt.Errorf("mcp: %w", err)
	}
	for _, note := range notes {
		cli.Say("%s: %s", m.File, note)
	}
	var errs []error
	if err := overlap(servers); err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", m.File, err))
	}
	for _, name := range slices.Sorted(maps.Keys(m.Servers)) {
		if !slices.ContainsFunc(servers, func(s agentfile.MCPServer) bool { return s.Name == name }) {
			errs = append(errs, fmt.Errorf("mcp.servers.%s: %s has no such server", name, m.File))
		}
	}
	for _, s := range servers {
		all, secrets = append(all, mcpOptions(s, m)), append(secrets, mcpSecrets(s)...)
	}
	return all, secrets, errors.Join(errs...)
}

func mcpOptions(s agentfile.MCPServer, m *agentfile.MCP) mcptool.Options {
	over := m.Servers[s.Name]
	var oauth *mcptool.OAuth
	if o := s.OAuth; o != nil {
		oauth = &mcptool.OAuth{
			ClientID: o.ClientID, ClientSecret: o.ClientSecret, TokenURL: o.TokenURL, Issuer: o.Issuer, Scopes: o.Scopes, TokenFile: o.TokenFile,
		}
	}
	var sandbox []string
	if len(s.Command) > 0 {
		sandbox = []string{string(exectool.Off)}
	}
	var pinned func() (map[string]string, error)
	if m.Pinned != "" {
		pinned = func() (map[string]string, error) { // a running process learns what is pinned later
			file, err := mcppins.Read(m.Pinned)
			if err != nil {
				return nil, err
			}
			return file.Digests(s.Name), nil
		}
	}
	return mcptool.Options{
		OAuth: oauth, Name: s.Name, Command: s.Command, Env: environment(s.Env), Dir: s.Dir, URL: s.URL, Headers: s.Headers, Tools: over.Tools,
		TrustHints: m.Trusts(s.Name), Pinned: pinned,
		Over: tool.Definition{Pool: over.Pool, Risk: over.Risk, Effect: over.Effect, Timeout: time.Duration(over.Timeout), Sandbox: sandbox},
	}
}

// mcpSecrets returns the values of a server's environment, headers and variables, the
// token of a header such as `Bearer TOKEN`, and user, password and query of its URL. A
// variable that names an existing file or folder is no secret: results are full of
// such names.
func mcpSecrets(s agentfile.MCPServer) []string {
	values := append(slices.Collect(maps.Values(s.Env)), headerSecrets(s.Headers)...)
	for _, value := range s.Filled {
		if _, err := os.Stat(value); err != nil || !filepath.IsAbs(value) {
			values = append(values, value)
		}
	}
	if s.OAuth != nil {
		values = append(values, s.OAuth.ClientSecret)
	}
	if u, err := url.Parse(s.URL); err == nil {
		password, _ := u.User.Password()
		values = append(values, u.User.Username(), password)
		for _, given := range u.Query() {
			values = append(values, given...)
		}
	}
	for _, value := range slices.Clone(values) { // as it stands in a URL
		values = append(values, url.QueryEscape(value), url.PathEscape(value))
	}
	slices.Sort(values)
	return slices.DeleteFunc(slices.Compact(values), func(v string) bool { return len(v) < shortestSecret })
}

// overlap reports servers whose tools could have the same names: their prefixes are
// equal, or one is a prefix of the other.
func overlap(servers []agentfile.MCPServer) error {
	var errs []error
	for i, a := range servers {
		for _, b := range servers[i+1:] {
			x, y := mcptool.Prefix(a.Name), mcptool.Prefix(b.Name)
			if strings.HasPrefix(x, y) || strings.HasPrefix(y, x) {
				errs = append(errs, fmt.Errorf("mcpServers: tools of %q and of %q could have the same names, which begin with %s and %s; rename one of the servers", a.Name, b.Name, x, y))
			}
		}
	}
	return errors.Join(errs...)
}

// Subagents returns the tools of a file that are agents; file may be nil.
func Subagents(file *agentfile.ToolFile) []subagent.Tool {
	if file == nil {
		return nil
	}
	var tools []subagent.Tool
	for _, e := range file.Tools {
		if e.OfAgent() {
			tools = append(tools, subagent.Tool{
				Approval: toolApproval(file), Name: e.Name, Agent: e.Agent, Handoff: e.Handoff, Description: e.Description, Risk: e.Risk, Timeout: time.Duration(e.Timeout),
			})
		}
	}
	return tools
}

// ActorSubagents returns the tools of an actor's file that are agents, if the actor
// serves the pool agents. Without pools it serves all. To name the pool agents without
// such a tool is an error.
func ActorSubagents(file string, pools []string) ([]subagent.Tool, error) {
	named := slices.Contains(pools, events.AgentsPool)
	if len(pools) > 0 && !named {
		return nil, nil
	}
	var tools []subagent.Tool
	if file != "" {
		docs, err := agentfile.ReadFile(file, agentfile.Options{CheckScript: script.Check})
		if err != nil {
			return nil, err
		}
		tools = Subagents(docs.Tools)
	}
	if named && len(tools) == 0 {
		return nil, fmt.Errorf("--pool %s: no tool is an agent; give one the key `agent` or `handoff`", events.AgentsPool)
	}
	return tools, nil
}

// LocalTools makes the registry of a process that runs every role: the file's tools,
// and each builtin without settings unless the file has a tool of its name.
func LocalTools(file *agentfile.ToolFile) (*toolset.Registry, []string, error) {
	builtins, err := Builtins()
	if file == nil || err != nil {
		return builtins, nil, err
	}
	own, secrets, err := Tools(file)
	if err != nil {
		return nil, nil, err
	}
	var tools []tool.Tool
	for _, def := range own.Definitions() {
		t, _ := own.Lookup(def.Name)
		tools = append(tools, t)
	}
	for _, def := range builtins.Definitions() {
		if _, taken := own.Lookup(def.Name); !taken {
			t, _ := builtins.Lookup(def.Name)
			tools = append(tools, t)
		}
	}
	registry, err := newRegistry(toolApproval(file), tools, own.Sources()...)
	return registry, secrets, err
}

// BadConfig gives an error the exit code for wrong settings; nil stays nil, and so does
// [agentfile.ErrClientPool], which ends a process with exit code 1.
func BadConfig(err error) error {
	if err == nil || errors.Is(err, agentfile.ErrClientPool) {
		return err
	}
	return cli.NotConfigured("%w", err)
}
