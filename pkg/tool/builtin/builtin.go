// Package builtin has the tools that come with Moorebus: ask_human, calculator,
// current_time, read_file and http_get, and the tools by which an agent uses its memory
// ([MemoryNames]).
//
// All have risk low. The tools of memory are idempotent, the others pure. The operator sets
// in [Options] what a tool may reach: the folder of read_file and the hosts of http_get. A
// tool without its setting cannot be made. Unknown keys in arguments are a failure with code
// invalid_arguments.
package builtin

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // current_time must know the zones on a bare machine too

	"github.com/moorebus/moorebus/internal/codec"
	"github.com/moorebus/moorebus/pkg/tool"
)

// The names of tools.
const (
	AskHuman     = "ask_human"
	Calculator   = "calculator"
	CurrentTime  = "current_time"
	readFileName = "read_file"
	httpGetName  = "http_get"
)

// defaultMaxBytes bounds what read_file and http_get return of one call.
const defaultMaxBytes = 256 << 10

// Options are the settings of all builtin tools. Each tool reads its own.
type Options struct {
	// Now is the clock of current_time. Default time.Now.
	Now func() time.Time
	// Root is the only folder that read_file reads. read_file requires it.
	Root string
	// Hosts are the hosts that http_get may ask, redirects included: `example.org` (ports
	// 80 and 443), `example.org:8080`, or `*.example.org` for every name below it.
	// http_get requires it.
	Hosts []string
	// MaxBytes bounds the result of read_file and http_get, in bytes. Default 256 KiB, at
	// most 2 GiB.
	MaxBytes int64
	// Timeout bounds one run of http_get. Default 20 s.
	Timeout time.Duration
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = defaultMaxBytes
	}
	o.MaxBytes = min(o.MaxBytes, math.MaxInt32)
	if o.Timeout <= 0 {
		o.Timeout = 20 * time.Second
	}
	return o
}

// Names returns the names of all builtin tools, sorted.
func Names() []string {
	return append([]string{AskHuman, Calculator, CurrentTime, httpGetName, readFileName}, MemoryNames()...)
}

// New makes the builtin tool of that name. The error says which setting is missing, or
// lists the names.
func New(name string, opts Options) (tool.Tool, error) {
	opts = opts.withDefaults()
	switch name {
	case AskHuman:
		return newAskHuman(), nil
	case Calculator:
		return newCalculator(), nil
	case CurrentTime:
		return newCurrentTime(opts), nil
	case readFileName:
		return newReadFile(opts)
	case httpGetName:
		return newHTTPGet(opts)
	}
	if t := newRemember(name); t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("builtin tool %q not found; there are: %s", name, strings.Join(Names(), ", "))
}

// definition has what all builtin tools have in common.
func definition(name, description, schema string) tool.Definition {
	return tool.Definition{
		Name: name, Description: description, Schema: json.RawMessage(schema),
		Effect: tool.Pure, Risk: tool.Low,
	}.WithDefaults()
}

// decode reads arguments strictly into a pointer to a struct. Empty arguments mean {}.
func decode(arguments string, into any) error {
	if strings.TrimSpace(arguments) == "" {
		arguments = "{}"
	}
	if err := codec.Strict([]byte(arguments), into); err != nil {
		return invalid("the arguments do not fit: %v", err)
	}
	return nil
}

func invalid(format string, args ...any) *tool.Failure {
	return tool.Failf(tool.CodeInvalidArguments, format, args...)
}

// looksBinary reports whether data does not look like text: it has NUL bytes, or more than
// a few invalid UTF-8 bytes.
func looksBinary(data []byte) bool {
	if slices.Contains(data[:min(len(data), 8000)], 0) {
		return true
	}
	bad := 0
	for _, r := range string(data[:min(len(data), 8000)]) {
		if r == '\uFFFD' {
			bad++
		}
	}
	return bad > 10
}

// The model sees the question alone: the answer is a human's.
const askHumanSchema = `{"type":"object","properties":{"question":{"type":"string",` +
	`"description":"What to ask, complete in itself: the human sees nothing else","minLength":1}},"required":["question"],"additionalProperties":false}`

// askHuman gives back what a human answered.
type askHuman struct{ def tool.Definition }

func newAskHuman() *askHuman {
	def := definition(AskHuman, "Asks a human a question and waits for the answer, which may take days. "+
		"Use it for what only a human can know or decide.", askHumanSchema)
	def.Asks = true
	return &askHuman{def: def}
}

func (a *askHuman) Definition() tool.Definition { return a.def }

// Run takes {"question", "answer"}, as the human's decision left the arguments,
// and returns the answer.
func (a *askHuman) Run(_ context.Context, call tool.Call) (string, error) {
	var in struct {
		Answer string `json:"answer"`
	}
	if err := json.Unmarshal([]byte(call.Arguments), &in); err != nil {
		return "", invalid("the arguments do not fit: %v", err)
	}
	if strings.TrimSpace(in.Answer) == "" {
		return "", tool.Failf(tool.CodeFailed, "no human has answered the question")
	}
	return in.Answer, nil
}

const currentTimeSchema = `{"type":"object","properties":{"timezone":{"type":"string",` +
	`"description":"IANA name such as Europe/Madrid; UTC if not given"}},"additionalProperties":false}`

// currentTime returns the time of its clock.
type currentTime struct {
	def tool.Definition
	now func() time.Time
}

func newCurrentTime(opts Options) *currentTime {
	return &currentTime{
		def: definition(CurrentTime, "Returns the current date and time in RFC 3339, in UTC or a given time zone.", currentTimeSchema),
		now: opts.Now,
	}
}

func (c *currentTime) Definition() tool.Definition { return c.def }

// Run takes {"timezone"?} and returns the time to the second.
func (c *currentTime) Run(_ context.Context, call tool.Call) (string, error) {
	var in struct {
		Timezone string `json:"timezone"`
	}
	if err := decode(call.Arguments, &in); err != nil {
		return "", err
	}
	// "Local" would tell where this process happens to run.
	zone, err := time.LoadLocation(in.Timezone)
	if err != nil || strings.EqualFold(in.Timezone, "local") {
		return "", invalid("unknown time zone %q; use an IANA name such as Europe/Madrid, or UTC", in.Timezone)
	}
	return c.now().In(zone).Format(time.RFC3339), nil
}
