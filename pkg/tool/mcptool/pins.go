package mcptool

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/moorebus/moorebus/internal/codec"
)

// PinOfInstructions is the name under which a server's instructions are pinned. No tool has it.
const PinOfInstructions = ""

// Reasons why a tool is not offered, see [Options.Pinned].
var (
	errNotPinned = errors.New("it is not pinned: review it with `moorebus mcp diff`, and accept it with `moorebus mcp pin`")
	errChanged   = errors.New("its definition differs from the pinned one: review it with `moorebus mcp diff`, and accept it with `moorebus mcp pin`")
)

// Said is what a server says of its tools: all that reaches a model or a policy.
type Said struct {
	// Definitions are those of the tools that would be offered, by the server's own names, as
	// JSON. The instructions, if there are any, are a string under [PinOfInstructions].
	Definitions map[string]json.RawMessage
	// Left has the reasons why other tools cannot be offered, by name.
	Left map[string]string
}

// Read connects to a server, reads the definitions of its tools and ends the session. It does
// not heed [Options.Pinned].
func Read(ctx context.Context, o Options, logger *slog.Logger) (*Said, error) {
	o.Pinned = nil
	source, err := New(o)
	if err != nil {
		return nil, err
	}
	s := source.(*server)
	if s.endpoint != nil {
		defer s.endpoint.close()
	}
	ctx, stop := context.WithTimeout(ctx, s.opts.ConnectTimeout)
	defer stop()
	ses, err := s.connect(ctx, logger)
	if err != nil {
		return nil, errors.New(s.conceal.Replace(err.Error()))
	}
	defer ses.close()
	l, err := s.list(ctx, ses.client)
	if err != nil {
		return nil, errors.New(s.conceal.Replace(ses.why(err).Error()))
	}
	return &Said{Definitions: l.said, Left: l.left}, nil
}

// Digest returns the SHA-256 of a definition in hexadecimal. It does not depend on the order of
// keys or on white space.
func Digest(definition json.RawMessage) (string, error) {
	var v any
	if err := codec.Strict(definition, &v); err != nil {
		return "", err
	}
	text, err := compact(v)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// saidOf returns what a server says of a tool.
func saidOf(t tooled) (json.RawMessage, error) {
	var hints *mcp.ToolAnnotations
	if a := t.Annotations; a != nil {
		hints = &mcp.ToolAnnotations{
			ReadOnlyHint: a.ReadOnlyHint, IdempotentHint: a.IdempotentHint, DestructiveHint: a.DestructiveHint, OpenWorldHint: a.OpenWorldHint,
		}
	}
	return compact(struct {
		Name        string               `json:"name"`
		Description string               `json:"description"`
		InputSchema any                  `json:"inputSchema"`
		Annotations *mcp.ToolAnnotations `json:"annotations,omitempty"`
		AsTask      bool                 `json:"asTask,omitempty"`
	}{t.Name, t.Description, t.InputSchema, hints, t.asTask})
}

// pin notes a definition, or refuses one that is not pinned or that the list has twice.
func (l *listing) pin(name string, definition json.RawMessage) error {
	if _, twice := l.said[name]; twice {
		return errors.New("the server lists it twice")
	}
	if l.pins != nil {
		digest, err := Digest(definition)
		pinned, known := l.pins[name]
		switch {
		case err != nil:
			return err
		case !known:
			return errNotPinned
		case digest != pinned:
			return errChanged
		}
	}
	l.said[name] = definition
	return nil
}

// pinInstructions is pin for the server's instructions, as the model would see them.
func (l *listing) pinInstructions(text string) error {
	definition, err := compact(text)
	if err != nil {
		return err
	}
	return l.pin(PinOfInstructions, definition)
}

// heed reads the pins. Without them nothing is offered.
func (s *server) heed(l *listing) (err error) {
	if s.opts.Pinned == nil {
		return nil
	}
	if l.pins, err = s.opts.Pinned(); err == nil && l.pins == nil {
		l.pins = map[string]string{}
	}
	return err
}

// withhold offers nothing, since the pins cannot be read.
func (l *listing) withhold(why error) {
	l.tools, l.found = nil, nil
	l.left = map[string]string{"all tools": fmt.Sprintf("the definitions that are pinned cannot be read: %s", strings.TrimSpace(why.Error()))}
}
