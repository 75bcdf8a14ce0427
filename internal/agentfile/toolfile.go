package agentfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool"
)

// ToolFile is an actor's tools.
type ToolFile struct {
	Tools []ToolEntry `json:"tools"`
	// Approval says which calls of the file's tools wait for a human, whatever an agent says; nil:
	// none.
	Approval *ToolApproval `json:"approval,omitempty"`
	// MCP are the MCP servers whose tools are added; nil for none.
	MCP *MCP `json:"-"`
	// Services are the NATS services whose tools are added.
	Services []ServiceEntry `json:"-"`
	// AllServices adds the tools of all other NATS services. No key says so.
	AllServices bool `json:"-"`
}

// ToolApproval is the policy of a tool file: that of an agent without what an agent alone says.
type ToolApproval struct {
	Policy events.ApprovalPolicy `json:"policy"`
	Risk   string                `json:"risk,omitempty"`
	Tools  []string              `json:"tools,omitempty"`
	Expr   string                `json:"expr,omitempty"`
}

// Of returns the policy as an agent has it; nil: none.
func (a *ToolApproval) Of() *events.Approval {
	if a == nil {
		return nil
	}
	return &events.Approval{Policy: a.Policy, Risk: a.Risk, Tools: a.Tools, Expr: a.Expr}
}

// ServiceEntry names a NATS service. Pool is the pool of its tools; empty: what the service
// says.
type ServiceEntry struct{ Service, Pool string }

// ToolEntry is one tool: exactly one of HTTP, Exec, Builtin, Agent, Handoff and A2A is set. An
// entry with Service stands for all tools of a NATS service; [ToolFile.Services] has it.
type ToolEntry struct {
	Name        string          `json:"name,omitempty"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema,omitempty"`

	HTTP    *HTTPTool `json:"http,omitempty"`
	Exec    *ExecTool `json:"exec,omitempty"`
	Builtin string    `json:"builtin,omitempty"`
	// Agent names a stored agent that answers the calls. Handoff names one that takes over
	// the conversation.
	Agent   string `json:"agent,omitempty"`
	Handoff string `json:"handoff,omitempty"`
	Service string `json:"service,omitempty"`
	// A2A is the URL of the card of an agent that speaks A2A, Headers are sent to it.
	A2A     string            `json:"a2a,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	// Filled are the values of variables that [ToolFile.Expand] put into a URL.
	Filled []string `json:"-"`

	Effect  tool.Effect     `json:"effect,omitempty"`
	Timeout events.Duration `json:"timeout,omitempty"`
	Retries int             `json:"retries,omitempty"`
	Pool    string          `json:"pool,omitempty"`
	Risk    tool.Risk       `json:"risk,omitempty"`

	Breaker *Breaker `json:"breaker,omitempty"`

	// Sandbox is the sandbox of a program: strict (the default), bwrap, runsc or off. Network is none
	// (the default) or host, Read what it may read besides, Require what its sandbox must have. Memory
	// and Processes bound all processes of a call together.
	Sandbox   string   `json:"sandbox,omitempty"`
	Network   string   `json:"network,omitempty"`
	Read      []string `json:"read,omitempty"`
	Require   []string `json:"require,omitempty"`
	Memory    Size     `json:"memory,omitempty"`
	Processes int      `json:"processes,omitempty"`
	// Root is the directory that the builtin read_file is confined to.
	Root string `json:"root,omitempty"`
	// Hosts are the hosts that the builtin http_get may reach.
	Hosts []string `json:"hosts,omitempty"`
}

// sandboxHolds is what a tool can require of its sandbox.
var sandboxHolds = []string{"pidns", "ipcns", "netns", "mountns", "landlock", "seccomp", "cgroup"}

// HTTPTool is a tool behind a URL.
type HTTPTool struct {
	URL     string            `json:"url"`
	Method  string            `json:"method,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
}

// ExecTool is a tool that is a program: Command is the program and its
// arguments, Env its whole environment, Dir where it runs.
type ExecTool struct {
	Command []string          `json:"command"`
	Env     map[string]string `json:"env,omitempty"`
	Dir     string            `json:"dir,omitempty"`
}

// Breaker configures a tool's circuit breaker: after Failures in a row (default 5) the tool
// is not called for the time Open (default 30s). Off turns the breaker off.
type Breaker struct {
	Failures int             `json:"failures,omitempty"`
	Open     events.Duration `json:"open,omitempty"`
	Off      bool            `json:"off,omitempty"`
}

// The builtins that have their own settings.
const (
	readFileBuiltin = "read_file"
	httpGetBuiltin  = "http_get"
)

// ParseTools reads a tool file. Entries without a name are named after their
// builtin.
func ParseTools(data []byte, f Format) (*ToolFile, error) {
	node, err := one(data, f)
	if err != nil {
		return nil, err
	}
	return toolFile(node)
}

// ReadTools is [ParseTools] for a file of the given name, which stands at the
// beginning of every error.
func ReadTools(name string) (*ToolFile, error) {
	data, err := readFile(name)
	if err != nil {
		return nil, err
	}
	tools, err := ParseTools(data, Auto)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	tools.locate(name)
	return tools, nil
}

func toolFile(node *strict.Node) (*ToolFile, error) {
	f := new(ToolFile)
	own, mcp := node.Without("mcp")
	if err := strict.Decode(own, f); err != nil {
		return nil, err
	}
	var errs []error
	if mcp != nil {
		var err error
		f.MCP, err = decodeMCP(mcp)
		errs = append(errs, err)
	}
	if err := f.Approval.Of().Check(); err != nil {
		errs = append(errs, node.Place("", err))
	}
	for i := range f.Tools {
		t := &f.Tools[i]
		if t.Name == "" && t.Service == "" {
			t.Name = t.usualName()
		}
		for _, err := range t.problems() {
			errs = append(errs, node.Place("", fmt.Errorf("tools[%d]%w", i, err)))
		}
		errs = append(errs, t.checkZeroTimeout(own, i))
		if first := slices.IndexFunc(f.Tools[:i], func(o ToolEntry) bool { return o.Name == t.Name }); t.Name != "" && first >= 0 {
			errs = append(errs, node.Place("", fmt.Errorf("tools[%d].name: %q is the name of tools[%d] too; rename or remove one", i, t.Name, first)))
		}
	}
	errs = append(errs, f.takeServices(node)...)
	if err := errors.Join(append(errs, f.spread(node)...)...); err != nil {
		return nil, err
	}
	return f, nil
}

// ErrClientPool refuses an actor that would serve the pool of clients' tools.
var ErrClientPool = fmt.Errorf("the pool %q is reserved for the tools of a run's client; an agent names them under client_tools", events.ClientPool)

// takeServices moves the entries of services from Tools to Services.
func (f *ToolFile) takeServices(node *strict.Node) []error {
	var errs []error
	tools := f.Tools[:0:0]
	for i, t := range f.Tools {
		if t.Service == "" {
			tools = append(tools, t)
			continue
		}
		if slices.ContainsFunc(f.Services, func(s ServiceEntry) bool { return s.Service == t.Service }) {
			errs = append(errs, node.Place("", fmt.Errorf("tools[%d].service: %q is named twice; remove one", i, t.Service)))
		}
		f.Services = append(f.Services, ServiceEntry{t.Service, t.Pool})
	}
	f.Tools = tools
	return errs
}

// serviceProblems returns what is wrong with the entry of a NATS service.
func (t *ToolEntry) serviceProblems() []error {
	var errs []error
	if strings.ContainsFunc(t.Service, notInServiceName) {
		errs = append(errs, fmt.Errorf(".service: %q is not the name of a NATS service; use a-z A-Z 0-9 _ -", t.Service))
	}
	if t.Pool != "" && (!events.ValidToken(t.Pool) || t.Pool == events.AgentsPool || t.Pool == events.ClientPool) {
		errs = append(errs, fmt.Errorf(".pool: %q is not a pool of actors; use [a-z0-9][a-z0-9_-]{0,62}, but not %s and %s", t.Pool, events.AgentsPool, events.ClientPool))
	}
	if only := (ToolEntry{Service: t.Service, Pool: t.Pool}); !reflect.DeepEqual(*t, only) {
		errs = append(errs, errors.New(".service: allows only the key pool with it; the metadata of the service's endpoints has the rest"))
	}
	return errs
}

func notInServiceName(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
}

// problems returns everything that is wrong with the entry. Each error begins with the path
// from the entry.
func (t *ToolEntry) problems() []error {
	if t.Service != "" {
		return t.serviceProblems()
	}
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf(key+": "+format, args...))
	}
	kinds := 0
	for _, set := range []bool{t.HTTP != nil, t.Exec != nil, t.Builtin != "", t.Agent != "", t.Handoff != "", t.A2A != ""} {
		if set {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		bad("", "a tool is exactly one of http, exec, builtin, agent, handoff, a2a and service; this one (%q) is %d of them", t.Name, kinds)
	case t.HTTP != nil:
		errs = append(errs, t.HTTP.problems()...)
	case t.Exec != nil && (len(t.Exec.Command) == 0 || t.Exec.Command[0] == ""):
		bad(".exec.command", "is missing; write the program and its arguments as a list")
	}
	if len(t.Headers) > 0 && t.A2A == "" {
		bad(".headers", "belongs to a2a; those of an http tool stand below http")
	}
	if t.A2A != "" && !hasVariable(t.A2A) {
		if err := checkURL(t.A2A); err != nil {
			bad(".a2a", "%w", err)
		}
	}
	if !validName(t.Name) {
		bad(".name", "%q is not a tool's name; use 1 to 64 of a-z A-Z 0-9 _ . -", t.Name)
	}
	if t.Effect != "" && !slices.Contains([]tool.Effect{tool.Pure, tool.Idempotent, tool.Once}, t.Effect) {
		bad(".effect", "%q is not a class; use pure, idempotent or once", t.Effect)
	}
	if _, known := events.RiskRank(string(t.Risk)); !known {
		bad(".risk", "%q is not a risk; use low, medium, high or critical", t.Risk)
	}
	if t.Pool != "" && !events.ValidToken(t.Pool) {
		bad(".pool", "%q is not a pool; use [a-z0-9][a-z0-9_-]{0,62}", t.Pool)
	}
	if t.OfAgent() {
		errs = append(errs, t.agentProblems()...)
	} else if t.Pool == events.AgentsPool {
		bad(".pool", "%q is reserved for agents that are called as tools", t.Pool)
	}
	if t.Pool == events.ClientPool {
		bad(".pool", "%w", ErrClientPool)
	}
	if t.Timeout < 0 {
		bad(".timeout", "must not be negative")
	}
	if t.Retries < 0 {
		bad(".retries", "must not be negative, is %d", t.Retries)
	}
	if b := t.Breaker; b != nil && (b.Failures < 0 || b.Open < 0) {
		bad(".breaker", "failures and open must not be negative; write {off: true} to have none")
	}
	if len(t.Schema) > 0 && t.Schema[0] != '{' {
		bad(".schema", "must be a JSON Schema, a mapping")
	}
	if t.Sandbox != "" && t.Exec == nil {
		bad(".sandbox", "belongs to exec tools alone")
	} else if !slices.Contains([]string{"", "strict", "bwrap", "runsc", "off"}, t.Sandbox) {
		bad(".sandbox", "%q is not known; use strict, bwrap, runsc or off", t.Sandbox)
	}
	for key, set := range map[string]bool{".network": t.Network != "", ".read": len(t.Read) > 0, ".require": len(t.Require) > 0, ".memory": t.Memory != 0, ".processes": t.Processes != 0} {
		if set && t.Exec == nil {
			bad(key, "belongs to exec tools alone")
		}
	}
	if !slices.Contains([]string{"", "none", "host"}, t.Network) {
		bad(".network", "%q is not known; use none or host", t.Network)
	}
	for i, hold := range t.Require {
		if !slices.Contains(sandboxHolds, hold) {
			bad(fmt.Sprintf(".require[%d]", i), "%q is not known; use some of %s", hold, strings.Join(sandboxHolds, ", "))
		}
	}
	if t.Root != "" && t.Builtin != readFileBuiltin {
		bad(".root", "belongs to the builtin %s alone", readFileBuiltin)
	}
	if len(t.Hosts) > 0 && t.Builtin != httpGetBuiltin {
		bad(".hosts", "belongs to the builtin %s alone", httpGetBuiltin)
	}
	return errs
}

func (h *HTTPTool) problems() []error {
	var errs []error
	if h.URL == "" {
		errs = append(errs, errors.New(".http.url: is missing"))
	} else if !hasVariable(h.URL) {
		if err := checkURL(h.URL); err != nil {
			errs = append(errs, fmt.Errorf(".http.url: %w", err))
		}
	}
	if !validName(h.Method) && h.Method != "" {
		errs = append(errs, fmt.Errorf(".http.method: %q is not a method such as POST", h.Method))
	}
	return errs
}

func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		// The text is not repeated: it may hold a secret.
		return errors.New("is not an absolute http or https URL")
	}
	return nil
}

func validName(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

// Definition returns the entry's settings of the tool, without defaults. A builtin has its
// own description, schema, class and risk, which the entry may override.
func (t *ToolEntry) Definition() tool.Definition {
	def := tool.Definition{
		Name: t.Name, Description: t.Description, Schema: t.Schema, Effect: t.Effect, Pool: t.Pool,
		Risk: t.Risk, Timeout: time.Duration(t.Timeout), Retries: t.Retries,
	}
	if b := t.Breaker; b != nil {
		def.Breaker = tool.Breaker{Off: b.Off, Failures: b.Failures, Open: time.Duration(b.Open)}
	}
	return def
}

// Expand replaces ${VAR} and ${VAR:-default} in the URLs and header values of
// the HTTP tools and A2A agents, and the environments of the programs. lookup is a function such
// as os.LookupEnv. A variable that is not set and has no default is an error.
func (f *ToolFile) Expand(lookup func(name string) (string, bool)) error {
	x := expander{lookup: lookup}
	for i := range f.Tools {
		t := &f.Tools[i]
		path := fmt.Sprintf("tools[%d] (%s)", i, t.Name)
		if h := t.HTTP; h != nil {
			x.filled = nil
			h.URL = x.expand(path+".http.url", h.URL)
			t.Filled = x.filled
			x.expandMap(path+".http.headers", h.Headers)
			if len(x.errs) == 0 {
				if err := checkURL(h.URL); err != nil {
					x.errs = append(x.errs, fmt.Errorf("%s.http.url: with its variables filled in it %w", path, err))
				}
			}
		}
		if t.A2A != "" {
			x.filled = nil
			t.A2A = x.expand(path+".a2a", t.A2A)
			t.Filled = x.filled
			x.expandMap(path+".headers", t.Headers)
			if len(x.errs) == 0 {
				if err := checkURL(t.A2A); err != nil {
					x.errs = append(x.errs, fmt.Errorf("%s.a2a: with its variables filled in it %w", path, err))
				}
			}
		}
		if t.Exec != nil {
			x.expandMap(path+".exec.env", t.Exec.Env)
		}
	}
	return errors.Join(x.errs...)
}

// HandoffPrefix begins the usual name of a tool that hands a conversation over.
const HandoffPrefix = "transfer_to_"

// OfAgent reports whether the entry makes an agent a tool. Such a tool runs nothing itself
// and belongs to the pool of agents.
func (t *ToolEntry) OfAgent() bool { return t.Agent != "" || t.Handoff != "" }

// usualName returns the name of an entry without one.
func (t *ToolEntry) usualName() string {
	switch {
	case t.Agent != "":
		return t.Agent
	case t.Handoff != "":
		return HandoffPrefix + t.Handoff
	}
	return t.Builtin
}

// agentProblems returns what is wrong with an entry that makes an agent a tool.
func (t *ToolEntry) agentProblems() []error {
	var errs []error
	for key, name := range map[string]string{"agent": t.Agent, "handoff": t.Handoff} {
		if name != "" && !events.ValidToken(name) {
			errs = append(errs, fmt.Errorf(".%s: %q is not an agent's name; use [a-z0-9][a-z0-9_-]{0,62}", key, name))
		}
	}
	if t.Pool != "" && t.Pool != events.AgentsPool {
		errs = append(errs, fmt.Errorf(".pool: agents are called in the pool %q alone; leave this key out", events.AgentsPool))
	}
	for key, set := range map[string]bool{
		"schema": len(t.Schema) > 0, "effect": t.Effect != "", "retries": t.Retries != 0, "breaker": t.Breaker != nil,
		"timeout": t.Handoff != "" && t.Timeout != 0,
	} {
		if set {
			errs = append(errs, fmt.Errorf(".%s: does not belong to this kind of tool; leave it out", key))
		}
	}
	return errs
}

// checkZeroTimeout refuses a timeout of 0 for the i-th tool of a file, an agent:
// a call of it could not end in time.
func (t *ToolEntry) checkZeroTimeout(file *strict.Node, i int) error {
	if !t.OfAgent() || t.Timeout != 0 {
		return nil
	}
	tools := file.Get("tools")
	if tools == nil || i >= len(tools.Items) {
		return nil
	}
	if n := tools.Items[i].Get("timeout"); n != nil && isZero(n) {
		return n.Errorf(fmt.Sprintf("tools[%d].timeout", i), "is 0, which no call could meet; leave it out for no limit but the run's own")
	}
	return nil
}
