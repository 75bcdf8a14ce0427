package control

import (
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/journal"
)

// On returns the configuration with all that a bus gives a controller.
func (c Config) On(bus journal.Bus) Config {
	c.Queue, c.Feed, c.KV, c.Blobs, c.Timers = bus, bus, bus, bus, bus
	c.Questions, _ = bus.(ports.Questions)
	c.Leases, _ = bus.(ports.Leases)
	c.Fleet, _ = bus.(ports.Fleet)
	c.Alarms, _ = bus.(ports.Alarms)
	return c
}
