package mcptool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/internal/truncate"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Bounds of a server's list.
const (
	maxTools       = 1000
	maxPages       = 100
	maxDescription = 8 << 10
	maxSchema      = 64 << 10
	// maxListed bounds the descriptions and schemas that are accepted, in bytes, since an
	// announcement has them. maxRead bounds all that is read of a list.
	maxListed = 256 << 10
	maxRead   = 4 << 20
	// maxLeft bounds how many rejected tools are logged.
	maxLeft = 20
)

var errListed = fmt.Errorf("descriptions and schemas of the tools are longer than %d KiB", maxListed>>10)

// listing is the accepted part of a server's list of tools.
type listing struct {
	tools []tool.Tool
	// left has the reason of each rejected tool, by name, and unnamed counts those that it does
	// not have.
	left    map[string]string
	unnamed int
	// found has the names of all wanted tools that the server has.
	found []string
	// pins are the digests of the definitions that are accepted; nil: of all. said has the
	// definitions of the accepted tools.
	pins map[string]string
	said map[string]json.RawMessage
	// size is that of the accepted definitions, checked that of all whose schemas were compiled,
	// read that of all. spent is how long the definitions took.
	size, checked, read int
	spent               time.Duration
}

// calm is how long the next list waits, so that a server with expensive schemas that keeps
// changing its list does not take a core.
func (l *listing) calm() time.Duration { return max(relistEvery, 10*l.spent) }

// list reads the server's tools page by page, up to the bounds, and adds those for its
// resources and prompts.
func (s *server) list(ctx context.Context, session *mcp.ClientSession) (*listing, error) {
	l := &listing{left: map[string]string{}, said: map[string]json.RawMessage{}}
	unpinned := s.heed(l)
	has := session.InitializeResult().Capabilities
	if has == nil {
		has = &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}}
	}
	if has.Tools != nil || has.Resources == nil && has.Prompts == nil {
		if err := s.listTools(ctx, session, l); err != nil {
			return nil, err
		}
	} else if err := probe(ctx, session, has); err != nil {
		return nil, err
	}
	if has.Resources != nil {
		s.addOwn(l, "resources", resourceTools)
	}
	if has.Prompts != nil {
		s.addOwn(l, "prompts", promptTools)
	}
	s.guide(l, session.InitializeResult().Instructions)
	s.missing(l)
	if unpinned != nil {
		l.withhold(unpinned)
	}
	return l, nil
}

// probe asks a server that has no tools to list whether it is there. It asks for something that
// the server has, since not every version of the protocol has a ping. A refusal is an answer.
func probe(ctx context.Context, session *mcp.ClientSession, has *mcp.ServerCapabilities) (err error) {
	if has.Resources != nil {
		_, err = session.ListResources(ctx, nil)
	} else {
		_, err = session.ListPrompts(ctx, nil)
	}
	if answerOf(err) != nil {
		return nil
	}
	return err
}

func (s *server) listTools(ctx context.Context, session *mcp.ClientSession, l *listing) error {
	cursor := ""
	for range maxPages {
		tools, next, err := page(ctx, session, cursor)
		if err != nil {
			return err
		}
		for _, t := range tools {
			if full := s.add(l, t); full {
				l.cut()
				return nil
			}
		}
		if next == "" {
			return nil
		}
		cursor = next
	}
	l.cut()
	return nil
}

// addOwn adds tools that the server does not list, unless it has tools of these names. That it has
// the capability is its own word too, so they are pinned, and of the class and risk of its others.
func (s *server) addOwn(l *listing, capability string, tools []ownTool) {
	effect, risk := tool.Once, tool.High
	if s.opts.TrustHints {
		effect, risk = tool.Idempotent, tool.Low
	}
	for _, t := range tools {
		name := toolName(s.opts.Name, t.name)
		taken := slices.ContainsFunc(l.found, func(found string) bool { return toolName(s.opts.Name, found) == name })
		if taken || !s.wants(t.name) || len(l.tools) == maxTools {
			continue
		}
		l.found = append(l.found, t.name)
		said, err := compact(map[string]string{"name": t.name, "capability": capability}) // of no tool that a server lists
		if err == nil {
			err = l.pin(t.name, said)
		}
		if err != nil {
			l.reject(t.name, err)
			continue
		}
		def := tool.Definition{Name: name, Description: t.description, Schema: t.schema, Effect: effect, Risk: risk}
		made := &remote{server: s, name: t.name, def: def, ask: t.ask}
		made.def = tool.Redefine(made, s.opts.Over).Definition().WithDefaults()
		l.tools = append(l.tools, made)
	}
}

// wants reports whether a tool is offered, by the server's own name.
func (s *server) wants(name string) bool {
	return len(s.opts.Tools) == 0 || slices.ContainsFunc(s.opts.Tools, func(wanted string) bool { return matches(wanted, name) })
}

// matches reports whether a name is the wanted one, or begins as a pattern such as `list_*`.
func matches(wanted, name string) bool {
	begin, pattern := strings.CutSuffix(wanted, "*")
	return name == wanted || pattern && strings.HasPrefix(name, begin)
}

// maxGuide bounds the server's instructions, in bytes.
const maxGuide = 4 << 10

// guide gives every tool the server's instructions. With many tools they are omitted, since
// the announcement of each tool has them.
func (s *server) guide(l *listing, instructions string) {
	instructions = strings.TrimSpace(s.hide(s.conceal.Replace(instructions)))
	if instructions == "" || len(l.tools) == 0 {
		return
	}
	if err := l.pinInstructions(instructions); err != nil {
		l.left["instructions"] = "the server's instructions for the model: " + err.Error()
		return
	}
	said := fmt.Sprintf("Instructions of the server %s for its tools: %s", s.opts.Name, truncate.Prefix(instructions, maxGuide))
	if len(said)*len(l.tools) > maxListed {
		l.left["instructions"] = fmt.Sprintf("the server's instructions for %d tools are longer than %d KiB; offer fewer of its tools", len(l.tools), maxListed>>10)
		return
	}
	for _, t := range l.tools {
		t.(*remote).def.Guide = said
	}
}

// add accepts a tool or notes why not. It reports whether the list has reached a bound.
func (s *server) add(l *listing, t tooled) (full bool) {
	if t.Tool == nil {
		return false
	}
	l.read += sizeOf(t.Tool)
	if !s.wants(t.Name) {
		return l.read > maxRead
	}
	if len(l.tools) == maxTools {
		return true
	}
	l.found = append(l.found, t.Name)
	began := time.Now()
	defer func() { l.spent += time.Since(began) }()
	def, err := s.definition(t.Tool, l)
	size := sizeOf(def.Description) + len(def.Schema)
	if err == nil && l.size+size > maxListed {
		err = errListed
	}
	if err == nil {
		var said json.RawMessage
		if said, err = saidOf(t); err == nil {
			err = l.pin(t.Name, said)
		}
	}
	if err != nil {
		l.reject(s.hide(s.conceal.Replace(t.Name)), err)
	} else {
		l.size += size
		made := &remote{server: s, name: t.Name, def: def, asTask: t.asTask}
		made.ask = made.callTool
		l.tools = append(l.tools, made)
	}
	return l.read > maxRead
}

// reject notes why a tool is rejected, up to maxLeft tools.
func (l *listing) reject(name string, why error) {
	if len(l.left) >= maxLeft {
		l.unnamed++
		return
	}
	l.left[truncate.Prefix(name, maxName)] = why.Error()
}

// cut notes that the list is longer.
func (l *listing) cut() {
	l.left[""] = fmt.Sprintf("the server lists more than %d tools, or more than %d MiB of definitions", maxTools, maxRead>>20)
}

// missing notes the wanted tools that the server does not have.
func (s *server) missing(l *listing) {
	for _, name := range s.opts.Tools {
		if _, cut := l.left[""]; !cut && !slices.ContainsFunc(l.found, func(found string) bool { return matches(name, found) }) {
			l.left[name] = "the server does not have it, but the tool list of its file names it"
		}
	}
}

// report logs the rejected tools, unless they are the same as before.
func (l *listing) report(before *listing, logger *slog.Logger) {
	if maps.Equal(l.left, before.left) && l.unnamed == before.unnamed {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(l.left)) {
		logger.Warn("a tool of an MCP server is left out", "tool", name, "reason", l.left[name], "taken", len(l.tools))
	}
	if l.unnamed > 0 {
		logger.Warn("more tools of an MCP server are left out", "tools", l.unnamed)
	}
}

// sizeOf returns the length of a value as JSON.
func sizeOf(v any) int {
	data, err := compact(v)
	if err != nil {
		return 0 // it came as JSON
	}
	return len(data)
}

// definition makes the tool's definition.
func (s *server) definition(t *mcp.Tool, l *listing) (tool.Definition, error) {
	input, err := compact(t.InputSchema)
	switch {
	case err != nil:
		return tool.Definition{}, fmt.Errorf("input schema: %w", err)
	case len(input) > maxSchema:
		return tool.Definition{}, fmt.Errorf("its input schema has %d bytes, more than %d", len(input), maxSchema)
	case len(input) > 0 && input[0] != '{':
		return tool.Definition{}, errors.New("its input schema is not an object")
	case t.Name == "":
		return tool.Definition{}, errors.New("it has no name")
	case s.betrays(t.Name), s.betrays(string(input)):
		return tool.Definition{}, errors.New("its name or its input schema has a secret of the server's settings in it")
	}
	if l.checked += len(input); l.checked > maxListed {
		return tool.Definition{}, errListed
	}
	if err := schema.Check(input); err != nil { // it would stop the start of the process
		return tool.Definition{}, fmt.Errorf("input schema: %w", err)
	}
	effect, risk := tool.Once, tool.High
	if s.opts.TrustHints {
		effect, risk = classes(t.Annotations)
	}
	def := tool.Definition{
		Name: toolName(s.opts.Name, t.Name), Description: truncate.Prefix(s.hide(t.Description), maxDescription), Schema: input,
		Effect: effect, Risk: risk,
	}
	return tool.Redefine(&remote{def: def}, s.opts.Over).Definition().WithDefaults(), nil
}

// betrays reports whether a text has the server's token or a key of its settings in it. Descriptions
// are announced without them, but a name and a schema would not be the same.
func (s *server) betrays(text string) bool {
	return s.hide(text) != text || slices.ContainsFunc(s.keys, func(key string) bool { return strings.Contains(text, key) })
}

// classes derives class and risk from annotations that are trusted, see the package comment.
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

// compact returns a value as JSON, or nil for nil.
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
