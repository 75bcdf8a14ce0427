package wire

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/mcptool"
)

// mcpServers makes the sources of a file of MCP servers, and returns the secrets in
// it. It reports keys of other programs on standard error.
func mcpServers(m *agentfile.MCP) ([]tool.Source, []string, error) {
	if m == nil {
		return nil, nil, nil
	}
	servers, notes, err := agentfile.ReadMCP(m.File, os.LookupEnv)
	if err != nil {
		return nil, nil, fmt.Errorf("mcp: %w", err)
	}
	for _, note := range notes {
		_, _ = fmt.Fprintf(terminal.Stderr, "%s: %s\n", m.File, note)
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
	var sources []tool.Source
	var secrets []string
	for _, s := range servers {
		made, err := mcptool.New(mcpOptions(s, m.Servers[s.Name]))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", m.File, err))
			continue
		}
		sources, secrets = append(sources, made), append(secrets, mcpSecrets(s)...)
	}
	return sources, secrets, errors.Join(errs...)
}

func mcpOptions(s agentfile.MCPServer, over agentfile.MCPTools) mcptool.Options {
	return mcptool.Options{
		Name: s.Name, Command: s.Command, Env: environment(s.Env), Dir: s.Dir, URL: s.URL, Headers: s.Headers, Tools: over.Tools,
		Over: tool.Definition{Pool: over.Pool, Risk: over.Risk, Effect: over.Effect, Timeout: time.Duration(over.Timeout)},
	}
}

// mcpSecrets returns the values of a server's environment, headers and variables, the
// token of a header such as `Bearer TOKEN`, and user, password and query of its URL. A
// variable that names an existing file or folder is no secret: results are full of
// such names.
func mcpSecrets(s agentfile.MCPServer) []string {
	values := slices.Collect(maps.Values(s.Env))
	for _, value := range s.Headers {
		values = append(values, value)
		if _, token, found := strings.Cut(value, " "); found {
			values = append(values, token)
		}
	}
	for _, value := range s.Filled {
		if _, err := os.Stat(value); err != nil || !filepath.IsAbs(value) {
			values = append(values, value)
		}
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
