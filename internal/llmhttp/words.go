package llmhttp

import (
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// maxMessage bounds what an error repeats of a provider's words, in bytes.
const maxMessage = 2048

// secret is a provider's key, which no error may hold.
type secret string

// clean makes a provider's words fit for a log: without the key, of bounded
// length, valid UTF-8.
func (s secret) clean(message string) string {
	if s.kept() {
		message = strings.ReplaceAll(message, string(s), "[API key]")
	}
	message = strings.ToValidUTF8(message, "\uFFFD")
	if len(message) <= maxMessage {
		return message
	}
	cut := maxMessage
	for !utf8.RuneStart(message[cut]) {
		cut--
	}
	return message[:cut] + "…"
}

// harmless returns err as a cause, or nil if its text holds the key.
func (s secret) harmless(err error) error {
	if s.kept() && strings.Contains(err.Error(), string(s)) {
		return nil
	}
	return err
}

// kept reports whether there is a key to keep. A shorter one is a placeholder
// for a server that wants none ("none", "ollama"), and an ordinary word.
func (s secret) kept() bool { return len(s) >= 8 }

// retryAfter is how long a provider's reply asks to wait, from the headers in
// use: retry-after-ms, and Retry-After in seconds or as a date; 0 for none.
func retryAfter(h http.Header, now time.Time) time.Duration {
	if d, ok := span(h.Get("retry-after-ms"), time.Millisecond); ok {
		return d
	}
	after := h.Get("Retry-After")
	if d, ok := span(after, time.Second); ok {
		return d
	}
	if at, err := http.ParseTime(after); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// span parses a number of units. More than a year is a mistake, and could
// overflow a duration.
func span(s string, unit time.Duration) (time.Duration, bool) {
	const year = float64(365 * 24 * time.Hour)
	f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	d := f * float64(unit)
	return time.Duration(min(d, year)), err == nil && d > 0 && d < year
}
