package retry

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ParseHeader reads the value of a Retry-After header (RFC 9110): how long
// from now a server wants to be left alone, 0 if it does not say.
func ParseHeader(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}
