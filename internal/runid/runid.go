// Package runid derives the ids of runs from the requests for them. So a request that is repeated finds the
// run that it started.
package runid

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/moorebus/moorebus/pkg/events"
)

// Child returns the id of the run that answers a call of another run. Who
// starts it and who cancels it need not tell each other. It is a UUIDv7 with the
// parent's time; the rest is the sha256 of the parent's id and the call's. A
// parent that is no id has no children: the result is empty.
func Child(parent, callID string) string { return derived(parent, "/"+callID) }

// Fork returns the id of the fork of a run that was asked for under an idempotency
// key, so that the same request again finds it. It has the form of what [Child]
// returns; the result is empty for a parent that is no id.
func Fork(parent, key string) string { return derived(parent, "\x00fork\x00"+key) }

// Request returns the id of the run that was asked for under a key, such as a message's id, so
// that the same request again finds it. It has the form of a UUIDv7 whose time means nothing.
func Request(scope, key string) string {
	what := "\x00request\x00" + scope + "\x00" + key
	sum := events.Hash([]byte(what))
	return derived("01"+sum[:6]+"-"+sum[6:10]+"-7000-8000-000000000000", what)
}

func derived(parent, what string) string {
	if events.CheckID(parent) != nil {
		return ""
	}
	sum := sha256.Sum256([]byte(parent + what))
	sum[0] = 0x70 | sum[0]&0x0f // version 7
	sum[2] = 0x80 | sum[2]&0x3f // variant of RFC 9562
	text := hex.EncodeToString(sum[:10])
	return parent[:13] + "-" + text[:4] + "-" + text[4:8] + "-" + text[8:20]
}
