package scripted

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// placeholder is a reference to an observation; opening finds what was meant to
// be one.
var (
	placeholder = regexp.MustCompile(`\{\{\s*observation\s+(-?[0-9]{1,9})\s*\}\}`)
	opening     = regexp.MustCompile(`\{\{\s*observation\b`)
)

// checkPlaceholders refuses references that could never be replaced.
func checkPlaceholders(text string) error {
	found := placeholder.FindAllStringSubmatch(text, -1)
	if len(found) != len(opening.FindAllString(text, -1)) {
		return fmt.Errorf("a reference has to be like {{observation -1}} (the last one) or {{observation 1}} (the first)")
	}
	for _, f := range found {
		if n, _ := strconv.Atoi(f[1]); n == 0 {
			return fmt.Errorf("%s: observations count from 1, or from the end from -1", f[0])
		}
	}
	return nil
}

// expand replaces every reference in text by the observation that it names.
func expand(text string, observations []string) (string, error) {
	return replace(text, observations, func(_, observation string) string { return observation })
}

// expandJSON does the same in JSON text. It escapes observations inside string literals,
// so that valid JSON stays valid.
func expandJSON(text string, observations []string) (string, error) {
	inside := false
	return replace(text, observations, func(before, observation string) string {
		inside = endsInString(before, inside)
		if !inside {
			return observation
		}
		return escape(observation)
	})
}

// replace calls put for every reference with the text between the reference
// before and this one, and with the observation.
func replace(text string, observations []string, put func(before, observation string) string) (string, error) {
	if !strings.Contains(text, "{{") {
		return text, nil
	}
	found := placeholder.FindAllStringSubmatchIndex(text, -1)
	if found == nil {
		return text, nil
	}
	var out strings.Builder
	end := 0
	for _, at := range found {
		observation, err := pick(text[at[2]:at[3]], observations)
		if err != nil {
			return "", err
		}
		before := text[end:at[0]]
		out.WriteString(before)
		out.WriteString(put(before, observation))
		end = at[1]
	}
	out.WriteString(text[end:])
	return out.String(), nil
}

func pick(number string, observations []string) (string, error) {
	n, err := strconv.Atoi(number)
	if err != nil {
		return "", fmt.Errorf("observation %q: %w", number, err)
	}
	i := n - 1
	if n < 0 {
		i = len(observations) + n
	}
	if n == 0 || i < 0 || i >= len(observations) {
		return "", fmt.Errorf("there is no observation %d: the run has %d so far", n, len(observations))
	}
	return observations[i], nil
}

// endsInString reports whether a piece of JSON text ends inside a string
// literal, given whether it began in one.
func endsInString(piece string, inside bool) bool {
	for i := 0; i < len(piece); i++ {
		switch {
		case piece[i] == '"':
			inside = !inside
		case piece[i] == '\\' && inside:
			i++
		}
	}
	return inside
}

func escape(s string) string {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	// A string cannot fail to encode.
	_ = enc.Encode(s)
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(out.String()), `"`), `"`)
}
