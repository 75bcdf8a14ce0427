package wire

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/pkg/agentfile"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/mcptool"
)

// mcpServers makes the sources of a file of MCP servers, and returns the secrets in
// it. Keys of other programs in it are said on standard error.
func mcpServers(m *agentfile.MCP) ([]tool.Source, []string, error) {
	if m == nil {
		return nil, nil, nil
	}
	servers, notes, err := agentfile.ReadMCP(m.File, os.LookupEnv)
	if err != nil {
		return nil, nil, fmt.Errorf("mcp: %w", err)
	}
	for _, note := range notes {
		_, _ = fmt.Fprintf(os.Stderr, "%s: %s\n", m.File, note)
	}
	var errs []error
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

// mcpSecrets are the values of a server's environment and headers, and of a header
// such as `Bearer TOKEN` also the token.
func mcpSecrets(s agentfile.MCPServer) []string {
	values := slices.Collect(maps.Values(s.Env))
	for _, value := range s.Headers {
		values = append(values, value)
		if _, token, found := strings.Cut(value, " "); found {
			values = append(values, token)
		}
	}
	return slices.DeleteFunc(values, func(v string) bool { return len(v) < shortestSecret })
}
