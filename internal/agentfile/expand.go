package agentfile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// expander fills in variables and gathers what is wrong. Values never stand in
// its errors.
type expander struct {
	lookup func(name string) (string, bool)
	errs   []error
	// filled are the values of the variables that were filled in.
	filled []string
}

func hasVariable(text string) bool { return strings.Contains(text, "${") }

// expand returns text with ${VAR} and ${VAR:-default} replaced, where a variable
// that is empty takes its default too; $${ stands for ${.
func (x *expander) expand(path, text string) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		if !found {
			b.WriteString(text)
			return b.String()
		}
		if literal, escaped := strings.CutSuffix(before, "$"); escaped {
			b.WriteString(literal + "${")
			text = rest
			continue
		}
		b.WriteString(before)
		expr, rest, closed := strings.Cut(rest, "}")
		if !closed {
			x.errs = append(x.errs, fmt.Errorf("%s: ${ without }", path))
			return ""
		}
		b.WriteString(x.variable(path, expr))
		text = rest
	}
}

func (x *expander) variable(path, expr string) string {
	name, fallback, hasFallback := strings.Cut(expr, ":-")
	if !validVariable(name) {
		x.errs = append(x.errs, fmt.Errorf("%s: ${%s} does not name a variable; write ${NAME} or ${NAME:-default}", path, name))
		return ""
	}
	value, set := x.lookup(name)
	switch {
	case value != "":
		x.filled = append(x.filled, value)
		return value
	case hasFallback:
		return fallback
	case !set:
		x.errs = append(x.errs, fmt.Errorf("%s: the environment variable %s is not set; set it, or write ${%s:-default}", path, name, name))
	}
	return value
}

func validVariable(name string) bool {
	for i := range len(name) {
		c := name[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

func (x *expander) expandMap(path string, values map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		values[key] = x.expand(path+"."+key, values[key])
	}
}
