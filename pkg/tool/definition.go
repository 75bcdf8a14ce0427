package tool

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// DefaultTimeout bounds one run of a tool whose definition sets no timeout.
const DefaultTimeout = 30 * time.Second

// maxRetries bounds Definition.Retries: beyond it the back-off alone takes
// minutes, which is the business of whoever made the call.
const maxRetries = 20

// emptySchema accepts any JSON object; it stands for a schema that is not set.
var emptySchema = json.RawMessage(`{"type":"object"}`)

// namePattern is what the model APIs accept as a function name, and dots.
var namePattern = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)

// WithDefaults returns d with every unset field at its default: class once,
// pool "default", risk low, [DefaultTimeout] and a schema that takes any object.
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
		d.Timeout = DefaultTimeout
	}
	if len(d.Schema) == 0 {
		d.Schema = emptySchema
	}
	return d
}

// Validate reports everything that is wrong with d, defaults applied. It checks
// that the schema is JSON, not that it is a good schema: package schema does.
func (d Definition) Validate() error {
	d = d.WithDefaults()
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("tool %q: "+format, append([]any{d.Name}, args...)...))
	}
	if !namePattern.MatchString(d.Name) {
		bad("the name must be 1 to 64 of the characters a-z A-Z 0-9 _ . -")
	}
	if strings.HasPrefix(d.Name, ReservedPrefix) {
		bad("names that begin with %s are Moorebus' own; rename it", ReservedPrefix)
	}
	if !slices.Contains([]Effect{Pure, Idempotent, Once}, d.Effect) {
		bad("effect %q must be pure, idempotent or once", d.Effect)
	}
	if d.Risk.Level() < 0 {
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

// Level returns the rank of r, 0 for low to 3 for critical, and -1 for a risk
// that does not exist.
func (r Risk) Level() int {
	return slices.Index([]Risk{Low, Medium, High, Critical}, r)
}

// Repeatable tells whether a tool of this class may run again when nobody knows
// whether it ran before.
func (e Effect) Repeatable() bool { return e == Pure || e == Idempotent }
