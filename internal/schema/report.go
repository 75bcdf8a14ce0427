package schema

import (
	"fmt"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// Bounds of a report, so that a large value cannot flood the model's context.
const (
	maxLines = 100
	maxLine  = 400
)

// report lists every violation on its own line as `- /pointer: what`, the
// alternatives of anyOf and oneOf indented under a line that says so.
func report(err *jsonschema.ValidationError) string {
	r := &reporter{}
	r.violation(err, 0)
	if r.left > 0 {
		r.lines = append(r.lines, fmt.Sprintf("and %d more", r.left))
	}
	return strings.Join(r.lines, "\n")
}

type reporter struct {
	lines []string
	left  int
}

func (r *reporter) violation(err *jsonschema.ValidationError, indent int) {
	if len(r.lines) >= maxLines { // there may be millions, and to word one takes time
		if len(err.Causes) == 0 {
			r.left++
		}
	} else if what := wording(err); what != "" {
		r.line(indent, err.InstanceLocation, what)
		indent++
	}
	for _, cause := range err.Causes {
		r.violation(cause, indent)
	}
}

// wording says what is wrong, "" where only the causes do.
func wording(err *jsonschema.ValidationError) string {
	switch k := err.ErrorKind.(type) {
	case *kind.FalseSchema:
		return "must not be there"
	case *kind.PropertyNames:
		return fmt.Sprintf("the name %q is not allowed", k.Property)
	case *kind.AnyOf, *kind.OneOf:
		if len(err.Causes) > 0 {
			return "none of the alternatives fits"
		}
	}
	if len(err.Causes) > 0 {
		return ""
	}
	// The library words its leaves well; this is the way to get at the text.
	if out := err.BasicOutput(); out.Error != nil {
		return out.Error.String()
	}
	return ""
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

func (r *reporter) line(indent int, location []string, what string) {
	pointer := ""
	for _, token := range location {
		pointer += "/" + pointerEscapes.Replace(token)
	}
	if pointer == "" {
		pointer = "(the whole value)"
	}
	line := []rune(fmt.Sprintf("%s- %s: %s", strings.Repeat("  ", indent), pointer, what))
	if len(line) > maxLine {
		line = append(line[:maxLine], '…')
	}
	r.lines = append(r.lines, string(line))
}
