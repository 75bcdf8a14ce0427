package builtin

import (
	"context"
	"strings"
	"time"

	"github.com/moorebus/moorebus/pkg/tool"
)

const currentTimeSchema = `{"type":"object","properties":{"timezone":{"type":"string",` +
	`"description":"IANA name such as Europe/Madrid; UTC if not given"}},"additionalProperties":false}`

// currentTime tells the time of its clock.
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

// Definition returns the tool's definition.
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
