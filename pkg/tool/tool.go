// Package tool is the port to tools: what an agent can do to the world.
//
// A [Tool] takes its arguments as the model's own JSON text and returns text. Its
// failure is an ordinary error, or a [Failure] if it has a machine-readable code. A
// failure is an observation for the model and never ends a run.
//
// Adapters are in the sub-packages: typed makes tools of Go functions; builtin, httptool,
// exectool, mcptool,
// servicetool and a2atool make them of other things. All adapters pass one suite.
package tool

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"
)

// Tool runs calls. Run is safe for concurrent use, returns soon after ctx ends, and
// leaves nothing running behind it. The text that it returns is the result as the model
// sees it. A Tool with a Close method is closed when its process stops using it.
type Tool interface {
	Definition() Definition
	Run(ctx context.Context, call Call) (string, error)
}

// Call is one invocation. Arguments is the model's text, byte for byte.
type Call struct {
	Run       string
	ID        string
	Name      string
	Arguments string
	// TraceParent is the run's W3C trace context, if it has one.
	TraceParent string
}

// IdempotencyKey returns a key by which a receiver recognises a repeated run of the same
// call: `run/call id`.
func (c Call) IdempotencyKey() string { return c.Run + "/" + c.ID }

// Source provides tools that come and go while it runs, such as those of a server.
type Source interface {
	// Name returns the source's name, which is unique in its process.
	Name() string
	// Pools returns the pools that the source's tools belong to unless they name another
	// one. They do not change. An actor that was given no pools serves those that appear.
	Pools() []string
	// Run serves the source until ctx ends and leaves nothing running. It calls put with
	// all tools as soon as they are known, and again after every change; with none if
	// there are none for now. Tools whose names are taken are omitted.
	Run(ctx context.Context, logger *slog.Logger, put func(tools []Tool))
}

// Failure is an error with a machine-readable snake_case code.
type Failure struct {
	Code    string
	Message string
	// NotSent says that the request certainly did not reach the tool. Then even a call
	// of class [Once] may be sent again.
	NotSent bool
	// Passing says that the same call may succeed a moment later, as with an overloaded
	// server. CodeTimeout and CodeUnreachable always pass. A tool fails with one of
	// these two if it has no answer; without NotSent, a call of class [Once] then ends
	// with CodeOutcomeUnknown.
	Passing bool
	// RetryAfter is the pause that the tool asks for, 0 if it asks for none.
	RetryAfter time.Duration
	// Err is the cause, nil if there is none but the message. With NotSent it says whether the
	// call did not begin because this machine lacked files, processes or memory: such a call is
	// tried again until its timeout, whatever its class is.
	Err error
}

// Error returns the message.
func (f *Failure) Error() string { return f.Message }

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }

// Failf makes a [Failure] with a formatted message.
func Failf(code, format string, args ...any) *Failure {
	return &Failure{Code: code, Message: fmt.Sprintf(format, args...)}
}

// The codes that all tools share. The runtime has others, for calls that no tool answered.
const (
	CodeNotFound         = "not_found"
	CodeInvalidArguments = "invalid_arguments"
	CodeFailed           = "tool_failed"
	CodeTimeout          = "timeout"
	CodeExitStatus       = "exit_status"
	CodeHTTPStatus       = "http_status"
	CodeUnreachable      = "unreachable"
)

// Validator checks arguments against a JSON Schema. The error lists every violation with
// its place, in words that a model can act on.
type Validator interface {
	Validate(schema json.RawMessage, arguments string) error
}
