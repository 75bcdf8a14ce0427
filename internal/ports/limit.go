package ports

import (
	"errors"
	"fmt"

	"github.com/moorebus/moorebus/pkg/journal"
)

// TooLargeError is a [journal.ErrTooLarge] that names the limit.
type TooLargeError struct {
	// What is too large, such as "agent default.helper".
	What string
	// Size is its length and Limit the largest one, in bytes.
	Size, Limit int
}

// Error names what is too large, and the limit.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%s has %d bytes, at most %d are allowed: %v", e.What, e.Size, e.Limit, journal.ErrTooLarge)
}

// Unwrap returns [journal.ErrTooLarge].
func (e *TooLargeError) Unwrap() error { return journal.ErrTooLarge }

// LimitOf describes the limit that a [journal.ErrTooLarge] exceeded, such as "960 KiB, the limit
// of an event".
func LimitOf(err error) string {
	var large *TooLargeError
	if errors.As(err, &large) && large.Limit < journal.MaxBody {
		return fmt.Sprintf("%d KiB, the limit of an event with this server's max_payload", large.Limit>>10)
	}
	return fmt.Sprintf("%d KiB, the limit of an event", journal.MaxBody>>10)
}
