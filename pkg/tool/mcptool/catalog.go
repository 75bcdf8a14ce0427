package mcptool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/moorebus/moorebus/pkg/tool"
)

// The bounds of what a server may list. All tools of an actor's pool are announced
// in one message.
const (
	maxTools       = 1000
	maxPages       = 100
	maxDescription = 8 << 10
	maxSchema      = 64 << 10
	maxListed      = 256 << 10
)

// list asks the server for all its tools, as far as they are bounded.
func list(ctx context.Context, session *mcp.ClientSession) ([]*mcp.Tool, error) {
	var all []*mcp.Tool
	params := &mcp.ListToolsParams{}
	for range maxPages {
		page, err := session.ListTools(ctx, params)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Tools...)
		if len(all) > maxTools {
			return all[:maxTools], errTooMany
		}
		if page.NextCursor == "" {
			return all, nil
		}
		params = &mcp.ListToolsParams{Cursor: page.NextCursor}
	}
	return all, errTooMany
}

// errTooMany says that a list was cut.
var errTooMany = errors.New("the server lists more tools than are taken")

// offer makes the tools of what a server lists. What cannot be a tool is left out,
// with a warning.
func (s *Server) offer(listed []*mcp.Tool, logger *slog.Logger) []tool.Tool {
	var offered []tool.Tool
	size := 0
	for _, t := range listed {
		if t == nil || len(s.opts.Tools) > 0 && !slices.Contains(s.opts.Tools, t.Name) {
			continue
		}
		def, err := s.definition(t)
		if err == nil && size+len(def.Description)+len(def.Schema) > maxListed {
			err = fmt.Errorf("descriptions and schemas of the tools are longer than %d KiB", maxListed>>10)
		}
		if err != nil {
			logger.Warn("a tool of an MCP server is left out", "tool", t.Name, "reason", err)
			continue
		}
		size += len(def.Description) + len(def.Schema)
		offered = append(offered, &remote{server: s, name: t.Name, def: def})
	}
	for _, name := range s.opts.Tools {
		if !slices.ContainsFunc(listed, func(t *mcp.Tool) bool { return t != nil && t.Name == name }) {
			logger.Warn("an MCP server does not have a tool that is wanted of it", "tool", name)
		}
	}
	return offered
}

// definition is a tool as others know it.
func (s *Server) definition(t *mcp.Tool) (tool.Definition, error) {
	schema, err := compact(t.InputSchema)
	switch {
	case err != nil:
		return tool.Definition{}, fmt.Errorf("input schema: %w", err)
	case len(schema) > maxSchema:
		return tool.Definition{}, fmt.Errorf("its input schema has %d bytes, more than %d", len(schema), maxSchema)
	case len(schema) > 0 && schema[0] != '{':
		return tool.Definition{}, errors.New("its input schema is no object")
	case t.Name == "":
		return tool.Definition{}, errors.New("it has no name")
	}
	effect, risk := classes(t.Annotations)
	def := tool.Definition{
		Name: toolName(s.opts.Name, t.Name), Description: tool.Prefix(t.Description, maxDescription), Schema: schema,
		Effect: effect, Risk: risk,
	}
	return tool.Redefine(&remote{def: def}, s.opts.Over).Definition().WithDefaults(), nil
}

// classes says what annotations mean, see the package comment.
func classes(a *mcp.ToolAnnotations) (tool.Effect, tool.Risk) {
	if a == nil {
		a = &mcp.ToolAnnotations{}
	}
	switch {
	case a.ReadOnlyHint && a.OpenWorldHint != nil && !*a.OpenWorldHint:
		return tool.Pure, tool.Low
	case a.ReadOnlyHint:
		return tool.Idempotent, tool.Low
	}
	effect, risk := tool.Once, tool.High
	if a.IdempotentHint {
		effect = tool.Idempotent
	}
	if a.DestructiveHint != nil && !*a.DestructiveHint {
		risk = tool.Medium
	}
	return effect, risk
}

// compact is a value as JSON, nothing for none.
func compact(v any) (json.RawMessage, error) {
	if v == nil {
		return nil, nil
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(out.Bytes()), nil
}
