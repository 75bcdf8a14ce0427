// Package tool is the port to tools: what an agent can do to the world.
//
// A [Tool] takes the arguments as the model's own JSON text and gives text back.
// Its failure is an ordinary error ([Failure] where it has a machine-readable
// code): it becomes an observation for the model, never the end of a run. A
// [Registry] holds the tools of one process and runs them so that a panic, an
// unknown name or a missed deadline is a failure too.
//
// Adapters live in the sub-packages (builtin, httptool, exectool, mcptool); argument
// validation is in schema. All adapters pass the suite in package tooltest.
package tool

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Effect classifies a tool by what happens when it runs twice.
type Effect string

// The classes. Once is the default: nothing is known about such a tool, so it
// is never run a second time after a crash.
const (
	Pure       Effect = "pure"
	Idempotent Effect = "idempotent"
	Once       Effect = "once"
)

// Risk is how much harm a call can do; it is compared by approval policies.
type Risk string

// The risks, lowest first. Low is the default.
const (
	Low      Risk = "low"
	Medium   Risk = "medium"
	High     Risk = "high"
	Critical Risk = "critical"
)

// ReservedPrefix begins the names that no tool may have.
const ReservedPrefix = "moorebus_"

// defaultPool is the pool of a tool that names none.
const defaultPool = "default"

// Definition is what others know of a tool: what it is announced as and what
// a run pins when it starts.
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
	// Retries is how often a failed run is repeated inside one call, where the
	// class allows it.
	Retries int
	// Asks marks a tool whose calls are answered by a human, see
	// events.ToolSpec.
	Asks bool
	// Breaker says when calls are not let through for a while.
	Breaker Breaker
}

// Breaker configures a tool's circuit breaker. The zero value has the defaults.
type Breaker struct {
	// Off lets every call through, whatever the ones before came to.
	Off bool
	// Failures is after how many failures in a row, each of them one of
	// [Failure.Down], the circuit opens. Default 5.
	Failures int
	// Open is how long it stays open before one call may try again. Default 30 s.
	Open time.Duration
}

// Call is one invocation. Arguments is the model's text, byte for byte.
type Call struct {
	Run       string
	ID        string
	Name      string
	Arguments string
}

// IdempotencyKey returns the key under which a repeated run of the same call
// can be recognised: `run/call id`.
func (c Call) IdempotencyKey() string { return c.Run + "/" + c.ID }

// Tool runs calls. Run is safe for concurrent use, returns soon after ctx ends
// and leaves nothing running behind it. The text it returns is the result as
// the model sees it.
type Tool interface {
	Definition() Definition
	Run(ctx context.Context, call Call) (string, error)
}

// Failure is an error with a machine-readable snake_case code.
type Failure struct {
	Code    string
	Message string
	// NotSent is true where the request surely did not reach the tool, so
	// that even a call of class [Once] may be sent again.
	NotSent bool
	// Passing is true where the same call may well succeed a moment later (an
	// overloaded server). CodeTimeout and CodeUnreachable always pass. A tool fails
	// with these two where it has no answer: without NotSent, a call of class [Once]
	// then ends as CodeOutcomeUnknown.
	Passing bool
	// RetryAfter is how long the tool wants to be left alone, 0 if it does not
	// say.
	RetryAfter time.Duration
}

// Error returns the message.
func (f *Failure) Error() string { return f.Message }

// Failf makes a [Failure] with a formatted message.
func Failf(code, format string, args ...any) *Failure {
	return &Failure{Code: code, Message: fmt.Sprintf(format, args...)}
}

// The codes that every tool shares.
const (
	CodeOK               = "ok"
	CodeNotFound         = "not_found"
	CodeInvalidArguments = "invalid_arguments"
	CodeFailed           = "tool_failed"
	CodeTimeout          = "timeout"
	CodePanic            = "panic"
	CodeCancelled        = "cancelled"
	CodeExitStatus       = "exit_status"
	CodeHTTPStatus       = "http_status"
	CodeUnreachable      = "unreachable"
	CodeCircuitOpen      = "circuit_open"
	// CodeOutcomeUnknown is the code of a call of class [Once] that was sent and not
	// answered.
	CodeOutcomeUnknown = "outcome_unknown"
)

// Validator checks arguments against a JSON Schema. The error lists every
// violation with its place, in words that a model can act on.
type Validator interface {
	Validate(schema json.RawMessage, arguments string) error
}
