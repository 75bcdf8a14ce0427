package tool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Effect classifies a tool by what happens if it runs twice.
type Effect string

// The classes. Once is the default: such a tool is never run again after a crash, since
// nobody knows whether it ran.
const (
	Pure       Effect = "pure"
	Idempotent Effect = "idempotent"
	Once       Effect = "once"
)

// Repeatable reports whether a tool of this class may run again if it is not known
// whether it ran.
func (e Effect) Repeatable() bool { return e == Pure || e == Idempotent }

// Risk is how much harm a call can do. Approval policies compare it.
type Risk string

// The risks, lowest first. Low is the default.
const (
	Low      Risk = "low"
	Medium   Risk = "medium"
	High     Risk = "high"
	Critical Risk = "critical"
)

// Definition is what others know of a tool: an actor announces it, and a run pins it
// when it starts.
type Definition struct {
	Name        string
	Description string
	// Schema is the JSON Schema (draft 2020-12) of the arguments.
	Schema json.RawMessage
	Effect Effect
	Pool   string
	Risk   Risk
	// Timeout bounds one run of the tool. Default 30 s.
	Timeout time.Duration
	// Retries is how often a failed run is repeated within one call, if the class
	// allows it.
	Retries int
	// Asks marks a tool whose calls a human answers, see events.ToolSpec.
	Asks bool
	// Services are the NATS services that have the tool. A run does not start with a tool
	// that several services have.
	Services []string
	// Guide is what the tool's server says about all of its tools. The model reads it once,
	// after the description of the first of them.
	Guide string
	// Breaker configures the tool's circuit breaker.
	Breaker Breaker
	// Approval says which calls wait for a human, whatever an agent says; nil: none.
	Approval *Approval
	// Sandbox is what holds the tool's program where it runs, as the event of a call has it: parts of a
	// sandbox, or off. Empty if there is no program, or that is not known before a call.
	Sandbox []string
}

// Approval is a tool's own policy. The fields are those of events.Approval.
type Approval struct {
	Policy string
	Risk   Risk
	Tools  []string
	Expr   string
}

// Breaker configures a circuit breaker. The zero value has the defaults.
type Breaker struct {
	// Off lets every call through.
	Off bool
	// Failures is the number of failures in a row after which the circuit opens. Only
	// failures of the tool itself count, not those of a call. Default 5.
	Failures int
	// Open is how long the circuit stays open before one call may try again. Default 30 s.
	Open time.Duration
}

const (
	defaultPool    = "default"
	defaultTimeout = 30 * time.Second
	// reservedPrefix begins the names that no tool may have.
	reservedPrefix = "moorebus_"
	// maxRetries bounds Definition.Retries. More retries would take minutes of pauses
	// within one call.
	maxRetries = 20
)

// emptySchema accepts any JSON object. It replaces a missing schema.
var emptySchema = json.RawMessage(`{"type":"object"}`)

// namePattern is what the model APIs accept as a function name, and dots.
var namePattern = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)

// WithDefaults returns d with a default in every empty field: class once, pool "default",
// risk low, timeout 30 s, and a schema that accepts any object.
func (d Definition) WithDefaults() Definition {
	if d.Effect == "" {
		d.Effect = Once
	}
	if d.Pool == "" {
		d.Pool = defaultPool
	}
	if d.Risk == "" {
		d.Risk = Low
	}
	if d.Timeout == 0 {
		d.Timeout = defaultTimeout
	}
	if len(d.Schema) == 0 {
		d.Schema = emptySchema
	}
	return d
}

// Validate reports everything that is wrong with d after defaults. It checks that the
// schema is JSON, not that it is a valid JSON Schema.
func (d Definition) Validate() error {
	d = d.WithDefaults()
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("tool %q: "+format, append([]any{d.Name}, args...)...))
	}
	if !namePattern.MatchString(d.Name) {
		bad("the name must be 1 to 64 of the characters a-z A-Z 0-9 _ . -")
	}
	if strings.HasPrefix(d.Name, reservedPrefix) {
		bad("names that begin with %s are reserved for Moorebus; rename it", reservedPrefix)
	}
	if !slices.Contains([]Effect{Pure, Idempotent, Once}, d.Effect) {
		bad("effect %q must be pure, idempotent or once", d.Effect)
	}
	if !slices.Contains([]Risk{Low, Medium, High, Critical}, d.Risk) {
		bad("risk %q must be low, medium, high or critical", d.Risk)
	}
	if !namePattern.MatchString(d.Pool) {
		bad("pool %q must be 1 to 64 of the characters a-z A-Z 0-9 _ . -", d.Pool)
	}
	if d.Timeout < 0 {
		bad("timeout %s must not be negative", d.Timeout)
	}
	if d.Retries < 0 || d.Retries > maxRetries {
		bad("retries %d must be between 0 and %d", d.Retries, maxRetries)
	}
	if d.Breaker.Failures < 0 {
		bad("breaker.failures %d must not be negative", d.Breaker.Failures)
	}
	if d.Breaker.Open < 0 {
		bad("breaker.open %s must not be negative", d.Breaker.Open)
	}
	if !json.Valid(d.Schema) {
		bad("the schema is not valid JSON")
	}
	return errors.Join(errs...)
}

// redefined is a tool with another definition.
type redefined struct {
	Tool
	def Definition
}

// Redefine returns t with every set field of over in its definition. Closing the result
// closes t.
func Redefine(t Tool, over Definition) Tool {
	def := t.Definition()
	if over.Name != "" {
		def.Name = over.Name
	}
	if over.Description != "" {
		def.Description = over.Description
	}
	if len(over.Schema) > 0 {
		def.Schema = over.Schema
	}
	if over.Effect != "" {
		def.Effect = over.Effect
	}
	if over.Pool != "" {
		def.Pool = over.Pool
	}
	if over.Risk != "" {
		def.Risk = over.Risk
	}
	if over.Timeout != 0 {
		def.Timeout = over.Timeout
	}
	if over.Retries != 0 {
		def.Retries = over.Retries
	}
	if over.Breaker != (Breaker{}) {
		def.Breaker = over.Breaker
	}
	if over.Approval != nil {
		def.Approval = over.Approval
	}
	if over.Sandbox != nil {
		def.Sandbox = over.Sandbox
	}
	return redefined{Tool: t, def: def}
}

func (r redefined) Definition() Definition { return r.def }

// Unwrap returns the tool under its own definition.
func (r redefined) Unwrap() Tool { return r.Tool }

// Close closes the tool if it has a Close method.
func (r redefined) Close() error {
	if c, ok := r.Tool.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
