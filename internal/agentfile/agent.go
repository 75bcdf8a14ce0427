package agentfile

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/codec"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/events"
)

// Options configure the reading of agent definitions. The zero value is ready to use.
type Options struct {
	// CheckScript checks the value of llm.script, nil if it is missing, of
	// agents whose provider is scripted. Its error begins with a path from llm,
	// as in "script[2].calls: …". Nil: scripts are not checked.
	CheckScript func(script json.RawMessage) error
	// CheckSchema checks the value of output_schema. Nil: it is not checked.
	CheckSchema func(schema json.RawMessage) error
	// Name is the name of an agent without one. With Fixed, any other name is refused.
	Name  string
	Fixed bool
	// Stored says that the definition was accepted and stored before, maybe by an older
	// version. The names of its tools are then not checked again.
	Stored bool
}

// ParseAgent reads one agent definition and resolves it: it fills in the defaults and checks
// every value.
func ParseAgent(data []byte, f Format, o Options) (events.Agent, error) {
	a, err := ParseDefinition(data, f, o)
	if err != nil {
		return events.Agent{}, err
	}
	return a.Resolve()
}

// ParseDefinition is [ParseAgent] without the defaults that depend on the mode, so that a run
// may choose another mode. It checks the values as ParseAgent does.
func ParseDefinition(data []byte, f Format, o Options) (events.Agent, error) {
	node, err := one(data, f)
	if err != nil {
		return events.Agent{}, err
	}
	return definition(node, "", o)
}

// Decode is [ParseAgent] for a definition that is part of a document; path
// stands before the paths of errors.
func Decode(node *strict.Node, path string, o Options) (events.Agent, error) {
	a, err := definition(node, path, o)
	if err != nil {
		return events.Agent{}, err
	}
	return a.Resolve()
}

// DecodeDefinition is [ParseDefinition] for a definition that is part of a
// document.
func DecodeDefinition(node *strict.Node, path string, o Options) (events.Agent, error) {
	return definition(node, path, o)
}

func definition(node *strict.Node, path string, o Options) (events.Agent, error) {
	a := events.DefaultAgent()
	if node.Kind != strict.Object {
		return a, node.Errorf(path, "is %s, want an agent definition: a mapping with name, llm and so on", node.Kind)
	}
	if err := strict.DecodeAt(node, path, &a); err != nil {
		return events.Agent{}, err
	}
	if err := CheckLimits(node.Get("budget"), joined(path, "budget"), "leave it out for no limit"); err != nil {
		return events.Agent{}, err
	}
	if a.Name == "" {
		a.Name = o.Name
	}
	if string(a.OutputSchema) == "null" {
		a.OutputSchema = nil
	}
	if o.Fixed && a.Name != o.Name {
		return events.Agent{}, node.Place(path, fmt.Errorf("name: %q is not %q, the name that it is to be kept under", a.Name, o.Name))
	}
	if _, err := a.Resolve(); err != nil {
		return events.Agent{}, node.Place(path, err)
	}
	if !o.Stored {
		if err := a.CheckNames(); err != nil {
			return events.Agent{}, node.Place(path, err)
		}
	}
	if o.CheckSchema != nil && len(a.OutputSchema) > 0 {
		if err := o.CheckSchema(a.OutputSchema); err != nil {
			return events.Agent{}, node.Place(path, fmt.Errorf("output_schema: %w", err))
		}
	}
	if a.LLM.Provider == providers.Scripted && o.CheckScript != nil {
		if err := o.CheckScript(a.LLM.Script); err != nil {
			return events.Agent{}, node.Place(path, fmt.Errorf("llm.%w", err))
		}
	}
	return a, nil
}

// Marshal returns the definition as canonical JSON: keys sorted, no white space,
// and without what is left to the mode. Reading it with [ParseDefinition] gives
// the same definition.
func Marshal(a events.Agent) []byte {
	text, err := codec.Append(nil, a)
	if err != nil {
		panic("an agent definition does not marshal: " + err.Error())
	}
	node, err := strict.ParseJSON(text)
	if err != nil {
		panic("an agent definition is not JSON: " + err.Error())
	}
	if a.Config.ContextWindowSize == events.ByMode {
		config := node.Get("config")
		*config, _ = without(config, "context_window_size")
	}
	return canonical(nil, node)
}

func without(n *strict.Node, key string) (rest strict.Node, value *strict.Node) {
	r, value := n.Without(key)
	return *r, value
}

// Hash identifies a definition, resolved or not: the lower-case hex sha256 of
// the resolved definition's [Marshal].
func Hash(a events.Agent) string {
	if resolved, err := a.Resolve(); err == nil {
		a = resolved
	}
	sum := sha256.Sum256(Marshal(a))
	return hex.EncodeToString(sum[:])
}

// canonical appends a node with its keys sorted. Numbers stay as they are
// written.
func canonical(b []byte, n *strict.Node) []byte {
	switch n.Kind {
	case strict.Object:
		members := slices.Clone(n.Members)
		slices.SortFunc(members, func(x, y strict.Member) int { return strings.Compare(x.Key, y.Key) })
		b = append(b, '{')
		for i, m := range members {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(codec.AppendString(b, m.Key), ':')
			b = canonical(b, m.Value)
		}
		return append(b, '}')
	case strict.Array:
		b = append(b, '[')
		for i, item := range n.Items {
			if i > 0 {
				b = append(b, ',')
			}
			b = canonical(b, item)
		}
		return append(b, ']')
	case strict.String:
		return codec.AppendString(b, n.Text)
	}
	return append(b, n.JSON()...)
}

// CheckLimits reports every limit of a budget that is written as 0. Its author probably
// means no limit, which is written by leaving the key out. advice is the end of each error
// and says what to do. n may be nil.
func CheckLimits(n *strict.Node, path, advice string) error {
	if n == nil {
		return nil
	}
	var errs []error
	for _, m := range n.Members {
		if isZero(m.Value) {
			errs = append(errs, m.Value.Errorf(joined(path, m.Key), "is 0, which would allow nothing; %s", advice))
		}
	}
	return errors.Join(errs...)
}

func isZero(n *strict.Node) bool {
	switch n.Kind {
	case strict.Number:
		v, err := strconv.ParseFloat(n.Text, 64)
		return err == nil && v == 0
	case strict.String:
		d, err := time.ParseDuration(n.Text)
		return err == nil && d == 0
	}
	return false
}

func joined(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// memoryBuiltin is the name for all tools of memory.
const memoryBuiltin = "memory"

var memoryTools = []string{"storage_load", "storage_save", "storage_search", "working_memory_add", "working_memory_remove"}

// spread replaces the entry of all tools of memory by one entry for each, with the same
// pool, timeout, retries, risk and breaker.
func (f *ToolFile) spread(node *strict.Node) []error {
	var errs []error
	spread := make([]ToolEntry, 0, len(f.Tools))
	for i, short := range f.Tools {
		if short.Builtin != memoryBuiltin {
			spread = append(spread, short)
			continue
		}
		if short.Name != memoryBuiltin || short.Description != "" || len(short.Schema) > 0 {
			errs = append(errs, node.Place("", fmt.Errorf("tools[%d]%w", i, errors.New(
				".builtin: memory stands for five tools; give name, description and schema to each of them by its own name"))))
		}
		for _, name := range memoryTools {
			short.Name, short.Builtin = name, name
			spread = append(spread, short)
		}
	}
	f.Tools = spread
	return errs
}
