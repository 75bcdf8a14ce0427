package events

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
)

// ErrID is wrapped by every error about the form of an id.
var ErrID = errors.New("not a lower-case UUIDv7")

// CheckID reports an error unless id is a UUIDv7 (RFC 9562) in its canonical
// lower-case text form.
func CheckID(id string) error {
	if len(id) != 36 || id[14] != '7' || !isVariant(id[19]) {
		return ErrID
	}
	for i := range len(id) {
		c := id[i]
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return ErrID
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return ErrID
			}
		}
	}
	return nil
}

func isVariant(c byte) bool { return c == '8' || c == '9' || c == 'a' || c == 'b' }

// Hash returns the lower-case hex sha256 of a body, byte for byte: what the
// next event of the run carries as `prev`.
func Hash(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}
