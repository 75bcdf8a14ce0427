// Package truncate cuts texts that are too long.
package truncate

import (
	"fmt"
	"unicode/utf8"
)

// Result bounds what a tool gives back: text of at most limit bytes is returned as it is, a
// longer one as its beginning, in whole characters, with a marker that the model
// can read. Total is how many bytes there were in all, negative if not known; it
// is what text was cut from where text itself was only read a little beyond limit.
func Result(text string, limit, total int64) string {
	if int64(len(text)) <= limit {
		return text
	}
	kept := Prefix(text, limit)
	if total < 0 {
		return fmt.Sprintf("%s\n[moorebus: output cut at %d bytes of more]", kept, len(kept))
	}
	return fmt.Sprintf("%s\n[moorebus: output cut at %d bytes of %d]", kept, len(kept), total)
}

// Prefix returns the first limit bytes of text, less those of a character that
// would be cut in two.
func Prefix(text string, limit int64) string {
	if int64(len(text)) <= limit {
		return text
	}
	end := max(int(limit), 0)
	// At most three bytes back: what is not UTF-8 anyway is cut where it falls.
	for back := range min(utf8.UTFMax, end+1) {
		if utf8.RuneStart(text[end-back]) {
			return text[:end-back]
		}
	}
	return text[:end]
}
