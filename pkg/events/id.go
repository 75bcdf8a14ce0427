package events

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
)

var errID = errors.New("not a lower-case UUIDv7")

// CheckID reports an error unless id is a UUIDv7 (RFC 9562) in its canonical
// lower-case text form.
func CheckID(id string) error {
	if !isID(id) {
		return errID
	}
	return nil
}

func isID(id string) bool {
	if len(id) != 36 || id[14] != '7' || !isVariant(id[19]) || id[8] != '-' || id[13] != '-' || id[18] != '-' || id[23] != '-' {
		return false
	}
	return isHex(id[:8]) && isHex(id[9:13]) && isHex(id[15:18]) && isHex(id[20:23]) && isHex(id[24:])
}

func isVariant(c byte) bool { return c == '8' || c == '9' || c == 'a' || c == 'b' }

// isHash reports whether a text has the form of what [Hash] returns.
func isHash(hash string) bool { return len(hash) == 64 && isHex(hash) }

func isHex(text string) bool {
	wrong := byte(0)
	for i := range len(text) {
		wrong |= notHex[text[i]]
	}
	return wrong == 0
}

// notHex is 0 for the lower-case hexadecimal digits and 1 for every other byte.
var notHex = func() (table [256]byte) {
	for c := range table {
		table[c] = 1
	}
	for _, c := range "0123456789abcdef" {
		table[c] = 0
	}
	return table
}()

// Hash returns the lower-case hex sha256 of a body, byte for byte: what the
// next event of the run carries as `prev`.
func Hash(body []byte) string {
	sum := sha256.Sum256(body)
	var text [2 * sha256.Size]byte
	hex.Encode(text[:], sum[:])
	return string(text[:])
}

// ChildID returns the id of the run that answers a call of another run. Who
// starts it and who cancels it need not tell each other. It is a UUIDv7 with the
// parent's time; the rest is the sha256 of the parent's id and the call's. A
// parent that is no id has no children: the result is empty.
func ChildID(parent, callID string) string { return derivedID(parent, "/"+callID) }

// ForkID returns the id of the fork of a run that was asked for under an idempotency
// key, so that the same request again finds it. It has the form of what [ChildID]
// returns; the result is empty for a parent that is no id.
func ForkID(parent, key string) string { return derivedID(parent, "\x00fork\x00"+key) }

// RequestID returns the id of the run that was asked for under a key, such as a message's id, so
// that the same request again finds it. It has the form of a UUIDv7 whose time means nothing.
func RequestID(scope, key string) string {
	what := "\x00request\x00" + scope + "\x00" + key
	sum := Hash([]byte(what))
	return derivedID("01"+sum[:6]+"-"+sum[6:10]+"-7000-8000-000000000000", what)
}

func derivedID(parent, what string) string {
	if CheckID(parent) != nil {
		return ""
	}
	sum := sha256.Sum256([]byte(parent + what))
	sum[0] = 0x70 | sum[0]&0x0f // version 7
	sum[2] = 0x80 | sum[2]&0x3f // variant of RFC 9562
	text := hex.EncodeToString(sum[:10])
	return parent[:13] + "-" + text[:4] + "-" + text[4:8] + "-" + text[8:20]
}
