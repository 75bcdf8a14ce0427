package journal

import (
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
)

// Subject returns the subject filter of a shard's records that match; a
// negative shard stands for every shard.
func (f Filter) Subject(shard int) string {
	text := events.EdgeFilter(max(shard, 0), f.Namespace, f.From, f.To, f.Pool)
	tokens := strings.Split(text, ".")
	if shard < 0 {
		tokens[1] = events.Wildcard
	}
	if f.Run != "" {
		tokens[len(tokens)-1] = f.Run
	}
	return strings.Join(tokens, ".")
}

// Match reports whether a subject has the form of an event's and every field
// that the filter names.
func (f Filter) Match(subject string) bool {
	rest := subject
	want := [7]string{2: f.Namespace, 3: string(f.From), 4: string(f.To), 5: f.Pool, 6: f.Run}
	for i, token := range want {
		got, tail, more := strings.Cut(rest, ".")
		if more != (i < len(want)-1) || (token != "" && got != token) {
			return false
		}
		rest = tail
	}
	return true
}
