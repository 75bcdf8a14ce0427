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
