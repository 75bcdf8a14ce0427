package exectool

import (
	"fmt"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/truncate"
)

// head keeps the first max bytes that are written, and one more by which
// [tool.Cut] sees that there was more, and counts the rest.
type head struct {
	max   int64
	kept  []byte
	total int64
}

// Write never fails, so that the command never blocks on a full pipe.
func (h *head) Write(p []byte) (int, error) {
	h.total += int64(len(p))
	if room := h.max + 1 - int64(len(h.kept)); room > 0 {
		h.kept = append(h.kept, p[:min(room, int64(len(p)))]...)
	}
	return len(p), nil
}

// String returns what was kept, with a marker where something was not.
func (h *head) String() string { return truncate.Result(string(h.kept), h.max, h.total) }

// end returns the last n bytes that were kept.
func (h *head) end(n int) string {
	t := &tail{max: n}
	_, _ = t.Write(h.kept) // a tail's Write never fails
	return t.String()
}

// tail keeps the last max bytes that are written and counts the rest.
type tail struct {
	max   int
	kept  []byte
	total int64
}

// Write never fails. It lets what is kept grow to twice the bound before it
// cuts, so that many small writes stay cheap.
func (t *tail) Write(p []byte) (int, error) {
	t.total += int64(len(p))
	t.kept = append(t.kept, p[max(0, len(p)-t.max):]...)
	if len(t.kept) > 2*t.max {
		t.kept = append(t.kept[:0], t.kept[len(t.kept)-t.max:]...)
	}
	return len(p), nil
}

// String returns the last bytes, after a marker where there were more.
func (t *tail) String() string {
	if t.total <= int64(t.max) {
		return string(t.kept)
	}
	text := t.kept[max(0, len(t.kept)-t.max):]
	for len(text) > 0 && !utf8.RuneStart(text[0]) {
		text = text[1:]
	}
	return fmt.Sprintf("[moorebus: output cut, these are the last %d bytes of %d]\n%s", len(text), t.total, text)
}
