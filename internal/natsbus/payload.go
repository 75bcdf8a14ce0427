package natsbus

import (
	"fmt"

	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

// minMessage is the least max_payload that Moorebus works with, in bytes. What is left of a
// result that is cut has 20 KiB, six times as much in the worst case as JSON text, and chunks
// of large results have 128 KiB.
const minMessage = 256 << 10

// bodyLimit is the largest body of an event on a server that takes messages of so many bytes.
// A sixteenth is left for the headers.
func bodyLimit(maxPayload int64) int {
	if maxPayload <= 0 { // no server has answered yet
		return journal.MaxBody
	}
	return int(min(maxPayload/16*15, journal.MaxBody))
}

// MaxBody returns the largest body of an event that the server takes.
func (b *Bus) MaxBody() int { return bodyLimit(b.NC.MaxPayload()) }

const mendPayload = "set max_payload: 1MB in the server's configuration"

// smallPayload says what a server takes that takes smaller messages than it does by default;
// empty: it does not.
func smallPayload(conn *nats.Conn) string {
	limit := conn.MaxPayload()
	if limit >= maxMessage {
		return ""
	}
	return fmt.Sprintf("the server takes messages up to %d KiB (max_payload), so an event may have %d KiB instead of %d KiB", limit>>10, bodyLimit(limit)>>10, journal.MaxBody>>10)
}

// checkPayload returns an error if the server takes only messages that are too small.
func checkPayload(conn *nats.Conn) error {
	if limit := conn.MaxPayload(); limit > 0 && limit < minMessage {
		return fmt.Errorf("the server takes messages up to %d bytes (max_payload), and Moorebus needs %d at least: %s", limit, minMessage, mendPayload)
	}
	return nil
}
