package runprint

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
)

// spoken is a part of a reply's text as JSON output has it, one on a line, before
// the reply's own event, which is event N.
type spoken struct {
	N        uint64 `json:"n"`
	OffsetMS int64  `json:"offset_ms"`
	Chunk    string `json:"chunk"`
}

// speak shows a reply's text in the rhythm in which it came, where that is in the
// log and events are shown in theirs.
func (p *printer) speak(ctx context.Context, e *events.Event) error {
	text, chunks := events.ChunksOf(e.Data)
	if p.o.Speed <= 0 || len(chunks) == 0 || p.first.IsZero() {
		return nil
	}
	// The log has the reply's time, which is right after its last part.
	began := e.Time.Add(-time.Duration(chunks[len(chunks)-1][0]) * time.Millisecond)
	if began.Before(p.last) {
		began = p.last
	}
	for _, part := range chunks {
		at := began.Add(time.Duration(part[0]) * time.Millisecond)
		if at.After(e.Time) {
			at = e.Time
		}
		if err := p.until(ctx, at); err != nil {
			return err
		}
		if err := p.say(at, text[:part[1]]); err != nil {
			return err
		}
		text = text[part[1]:]
	}
	if p.o.JSON {
		return nil
	}
	_, err := io.WriteString(p.w, "\n")
	return err
}

func (p *printer) say(at time.Time, text string) error {
	if p.o.JSON {
		return writeLine(p.w, spoken{N: p.mem.N, OffsetMS: at.Sub(p.first).Milliseconds(), Chunk: text})
	}
	_, err := io.WriteString(p.w, strings.Map(func(r rune) rune {
		if (r < ' ' && r != '\n') || r == 0x7f {
			return ' ' // a terminal does as it is told
		}
		return r
	}, text))
	return err
}

// until waits for a time of the run.
func (p *printer) until(ctx context.Context, at time.Time) error {
	due := p.begun.Add(time.Duration(float64(at.Sub(p.first)) / p.o.Speed))
	if wait := due.Sub(p.o.Clock.Now()); wait > 0 {
		return p.o.Clock.Sleep(ctx, wait)
	}
	return nil
}
