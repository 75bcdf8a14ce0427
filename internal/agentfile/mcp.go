package agentfile

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool"
)

// MCP is the key mcp of a tool file: the file of MCP servers, and optional settings of their
// tools.
type MCP struct {
	// File is the path of the file; [ReadTools] and [ReadFile] make it relative to
	// the tool file.
	File string `json:"file"`
	// Pinned is the path of the file of pinned definitions, relative as File; empty: none.
	Pinned string `json:"pinned,omitempty"`
	// TrustHints lets the annotations of all servers lower class and risk of their tools.
	TrustHints bool `json:"trust_hints,omitempty"`
	// Servers are the settings by server name.
	Servers map[string]MCPTools `json:"servers,omitempty"`
}

// MCPTools says how the tools of one MCP server are offered. An empty field means the
// server's own value, or the default.
type MCPTools struct {
	Pool    string          `json:"pool,omitempty"`
	Risk    tool.Risk       `json:"risk,omitempty"`
	Effect  tool.Effect     `json:"effect,omitempty"`
	Timeout events.Duration `json:"timeout,omitempty"`
	// TrustHints is that of the server; nil: as [MCP] says.
	TrustHints *bool `json:"trust_hints,omitempty"`
	// Tools are the tools that are offered, by the server's own names. Default: all.
	Tools []string `json:"tools,omitempty"`
}

// Trusts reports whether the annotations of a server may lower class and risk of its tools.
func (m *MCP) Trusts(server string) bool {
	if own := m.Servers[server].TrustHints; own != nil {
		return *own
	}
	return m.TrustHints
}

// decodeMCP reads the key mcp.
func decodeMCP(node *strict.Node) (*MCP, error) {
	m := new(MCP)
	if node.Kind == strict.String {
		m.File = node.Text
	} else if err := strict.DecodeAt(node, "mcp", m); err != nil {
		return nil, err
	}
	if m.File == "" {
		return nil, node.Errorf("mcp", "names no file; write mcp: .mcp.json, or mcp: {file: .mcp.json, servers: …}")
	}
	if m.Pinned == "" && node.Get("pinned") != nil {
		return nil, node.Errorf("mcp.pinned", "names no file; write the file that `moorebus mcp pin` is to make, such as mcp-pins.json")
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(m.Servers)) {
		t := m.Servers[name]
		// As an entry of the tools is checked.
		e := ToolEntry{Name: "x", Builtin: "x", Pool: t.Pool, Risk: t.Risk, Effect: t.Effect, Timeout: t.Timeout}
		for _, err := range e.problems() {
			errs = append(errs, node.Place("mcp", fmt.Errorf("servers.%s%w", name, err)))
		}
	}
	return m, errors.Join(errs...)
}

// MCPServer is one server of a file of MCP servers: a command or a URL.
type MCPServer struct {
	Name    string
	Command []string
	Env     map[string]string
	// Dir is where the command runs.
	Dir     string
	URL     string
	Headers map[string]string
	// OAuth is how tokens for the URL are obtained; nil: there are none.
	OAuth *MCPOAuth
	// Filled are the values of variables in Env, URL, Headers and the command's
	// arguments: they may be secrets.
	Filled []string
}

// MCPOAuth is the key oauth of a server with a URL, see mcptool.OAuth.
type MCPOAuth struct {
	ClientID     string   `json:"client_id"`
	ClientSecret string   `json:"client_secret"`
	TokenURL     string   `json:"token_url"`
	Issuer       string   `json:"issuer"`
	Scopes       []string `json:"scopes"`
	// TokenFile is relative to the file of MCP servers.
	TokenFile string `json:"token_file"`
}

// mcpServer is a server as the file has it.
type mcpServer struct {
	Type     string            `json:"type"`
	Command  string            `json:"command"`
	Args     []string          `json:"args"`
	Env      map[string]string `json:"env"`
	Cwd      string            `json:"cwd"`
	URL      string            `json:"url"`
	Headers  map[string]string `json:"headers"`
	OAuth    *MCPOAuth         `json:"oauth"`
	Disabled bool              `json:"disabled"`
}

var mcpKeys = []string{"type", "command", "args", "env", "cwd", "url", "headers", "oauth", "disabled"}

// ReadMCP reads a file of MCP servers as other programs have it (`.mcp.json`):
// `{"mcpServers": {name: {command, args, env, cwd} | {type: http, url, headers}}}`.
// ${VAR} and ${VAR:-default} are replaced in every text by values of lookup. A command runs
// in the file's folder unless cwd says otherwise. Keys without a meaning here are no errors;
// they are returned as notes.
func ReadMCP(name string, lookup func(string) (string, bool)) (servers []MCPServer, notes []string, err error) {
	data, err := readFile(name)
	if err != nil {
		return nil, nil, err
	}
	if servers, notes, err = ParseMCP(data, lookup); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	folder, err := filepath.Abs(filepath.Dir(name))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	for i := range servers {
		s := &servers[i]
		if s.URL == "" && !filepath.IsAbs(s.Dir) {
			s.Dir = filepath.Join(folder, s.Dir)
		}
		if o := s.OAuth; o != nil && o.TokenFile != "" && !filepath.IsAbs(o.TokenFile) {
			o.TokenFile = filepath.Join(folder, o.TokenFile)
		}
	}
	return servers, notes, nil
}

// ParseMCP is [ReadMCP] for the contents of a file. Servers are sorted by name.
func ParseMCP(data []byte, lookup func(string) (string, bool)) (servers []MCPServer, notes []string, err error) {
	if len(data) > MaxSize {
		return nil, nil, ErrTooLarge
	}
	root, err := strict.ParseJSON(data)
	if err != nil {
		return nil, nil, err
	}
	list := root.Get("mcpServers")
	if list == nil || list.Kind != strict.Object {
		return nil, nil, root.Errorf("mcpServers", `is missing; write {"mcpServers": {"name": {"command": …} or {"type": "http", "url": …}}}`)
	}
	for _, m := range root.Members {
		if m.Key != "mcpServers" {
			notes = append(notes, m.Key+" means nothing here")
		}
	}
	x := expander{lookup: lookup}
	for _, m := range list.Members {
		path := "mcpServers." + m.Key
		known, ignored := split(m.Value)
		if others := known.Get("oauth"); others != nil && others.Get("client_secret") == nil && others.Get("token_file") == nil {
			known, _ = known.Without("oauth") // of programs that send a person to log in
			ignored = append(ignored, "oauth (it has neither client_secret nor token_file)")
		}
		for _, key := range ignored {
			notes = append(notes, path+"."+key+" means nothing here")
		}
		var raw mcpServer
		if err := strict.DecodeAt(known, path, &raw); err != nil {
			x.errs = append(x.errs, err)
			continue
		}
		if raw.Disabled {
			notes = append(notes, path+" is disabled")
			continue
		}
		if err := raw.check(); err != nil {
			x.errs = append(x.errs, m.Value.Place(path, err))
			continue
		}
		servers = append(servers, raw.expand(m.Key, path, &x))
	}
	slices.SortFunc(servers, func(a, b MCPServer) int { return strings.Compare(a.Name, b.Name) })
	if err := errors.Join(x.errs...); err != nil {
		return nil, nil, err
	}
	return servers, notes, nil
}

// split separates the keys that have no meaning here.
func split(n *strict.Node) (known *strict.Node, ignored []string) {
	known = n
	for _, m := range n.Members {
		if !slices.Contains(mcpKeys, m.Key) {
			ignored = append(ignored, m.Key)
			known, _ = known.Without(m.Key)
		}
	}
	return known, ignored
}

// check reports a server of an unknown kind.
func (r *mcpServer) check() error {
	switch r.Type {
	case "", "stdio", "http", "streamable-http", "streamableHttp", "streamable_http":
	case "sse":
		return errors.New(`type: "sse" is the transport that streamable HTTP replaced; if the server has a URL for that, write "type": "http" and that url`)
	default:
		return fmt.Errorf(`type: %q is not known; use "stdio" (with command) or "http" (with url)`, r.Type)
	}
	web := r.Type != "" && r.Type != "stdio" || r.Type == "" && r.URL != ""
	switch {
	case web && r.URL == "":
		return errors.New("url: is missing")
	case web && r.Command != "":
		return errors.New("command: a server has a command or a url, not both")
	case !web && r.Command == "":
		return errors.New(`command: is missing; a server has a "command", or "type": "http" and a "url"`)
	case !web && r.OAuth != nil:
		return errors.New(`oauth: belongs to "type": "http"`)
	case !web && r.URL != "":
		return errors.New(`url: belongs to "type": "http"`)
	}
	return nil
}

// expand fills in the variables.
func (r *mcpServer) expand(name, path string, x *expander) (s MCPServer) {
	s = MCPServer{Name: name, Env: r.Env, Headers: r.Headers}
	defer func() { s.Filled, x.filled = x.filled, nil }()
	if r.URL != "" {
		before := len(x.errs)
		s.URL = x.expand(path+".url", r.URL)
		if err := checkURL(s.URL); err != nil && len(x.errs) == before {
			x.errs = append(x.errs, fmt.Errorf("%s.url: %w", path, err))
		}
		x.expandMap(path+".headers", s.Headers)
		if s.OAuth = r.OAuth; s.OAuth != nil {
			for key, text := range map[string]*string{
				"client_id": &s.OAuth.ClientID, "client_secret": &s.OAuth.ClientSecret, "token_url": &s.OAuth.TokenURL,
				"issuer": &s.OAuth.Issuer, "token_file": &s.OAuth.TokenFile,
			} {
				*text = x.expand(path+".oauth."+key, *text)
			}
		}
		return s
	}
	s.Command = []string{x.expand(path+".command", r.Command)}
	s.Dir = x.expand(path+".cwd", r.Cwd)
	x.filled = nil // a program and a folder are no secrets
	for i, arg := range r.Args {
		s.Command = append(s.Command, x.expand(fmt.Sprintf("%s.args[%d]", path, i), arg))
	}
	x.expandMap(path+".env", s.Env)
	return s
}

// locate makes the paths of the MCP servers and of their pins relative to the tool file's folder.
func (f *ToolFile) locate(toolFile string) {
	if f == nil || f.MCP == nil {
		return
	}
	for _, path := range []*string{&f.MCP.File, &f.MCP.Pinned} {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(filepath.Dir(toolFile), *path)
		}
	}
}

// expander replaces variables and collects errors. The errors have no values.
type expander struct {
	lookup func(name string) (string, bool)
	errs   []error
	// filled are the values of the variables that were filled in.
	filled []string
}

func hasVariable(text string) bool { return strings.Contains(text, "${") }

// expand returns text with ${VAR} and ${VAR:-default} replaced. An empty variable takes its
// default too. $${ means ${.
func (x *expander) expand(path, text string) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		if !found {
			b.WriteString(text)
			return b.String()
		}
		if literal, escaped := strings.CutSuffix(before, "$"); escaped {
			b.WriteString(literal + "${")
			text = rest
			continue
		}
		b.WriteString(before)
		expr, rest, closed := strings.Cut(rest, "}")
		if !closed {
			x.errs = append(x.errs, fmt.Errorf("%s: ${ without }", path))
			return ""
		}
		b.WriteString(x.variable(path, expr))
		text = rest
	}
}

func (x *expander) variable(path, expr string) string {
	name, fallback, hasFallback := strings.Cut(expr, ":-")
	if !validVariable(name) {
		x.errs = append(x.errs, fmt.Errorf("%s: ${%s} does not name a variable; write ${NAME} or ${NAME:-default}", path, name))
		return ""
	}
	value, set := x.lookup(name)
	switch {
	case value != "":
		x.filled = append(x.filled, value)
		return value
	case hasFallback:
		return fallback
	case !set:
		x.errs = append(x.errs, fmt.Errorf("%s: the environment variable %s is not set; set it, or write ${%s:-default}", path, name, name))
	}
	return value
}

func validVariable(name string) bool {
	for i := range len(name) {
		c := name[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

func (x *expander) expandMap(path string, values map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		values[key] = x.expand(path+"."+key, values[key])
	}
}
