package print

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Entry is a record of a run on the timeline.
type Entry struct {
	// Record is what is stored; its zero value is no record.
	Record journal.Record
	// Event is the record's event. Refused says why the record is not a legal event of the
	// run; Event may then be nil.
	Event   *events.Event
	Refused error
	// N is the number of a refused record, 0 if it is not known.
	N uint64
	// Started is when the run started, zero if it is not known.
	Started time.Time
	// Reasoning says that the run's agent shows all of the reasoning.
	Reasoning bool
}

// Reader makes entries of a run's records. Fold is required.
type Reader struct {
	Fold  *runlog.Fold
	first time.Time
}

// Entry folds the next record. Errors are those of [runlog.Fold.Apply] that are not about the
// record itself.
func (r *Reader) Entry(ctx context.Context, rec journal.Record) (Entry, error) {
	e, err := r.Fold.Apply(ctx, rec)
	if err != nil && !runlog.Refused(err) {
		return Entry{}, err
	}
	if e != nil && r.first.IsZero() {
		r.first = e.Time
	}
	mem := r.Fold.Memory()
	return Entry{Record: rec, Event: e, Refused: err, N: mem.N, Started: r.first, Reasoning: ShowsReasoning(mem)}, nil
}

// ShowsReasoning reports whether commands show all of the model's reasoning.
func ShowsReasoning(mem *reducer.Memory) bool {
	r := mem.Control.Agent.Reasoning
	return r != nil && r.Show
}

// Line is an entry as -o json has it.
type Line struct {
	N   uint64 `json:"n"`
	Seq uint64 `json:"seq"`
	// Time is the event's; OffsetMS is the time since the run's start in milliseconds, absent
	// if that is not known.
	Time     *time.Time   `json:"time,omitempty"`
	OffsetMS *int64       `json:"offset_ms,omitempty"`
	Type     events.Type  `json:"type,omitempty"`
	From     events.State `json:"from,omitempty"`
	To       events.State `json:"to,omitempty"`
	Step     int          `json:"step"`
	Subject  string       `json:"subject"`
	// Summary is the event's data in at most 100 characters.
	Summary string `json:"summary,omitempty"`
	// Illegal says why the record is not a legal event of the run.
	Illegal string `json:"illegal,omitempty"`
	// Event is the stored body, as a string if it is not JSON.
	Event json.RawMessage `json:"event"`
}

// Line returns the entry as JSON output has it.
func (e Entry) Line() Line {
	line := Line{N: e.N, Seq: e.Record.Seq, Subject: e.Record.Subject, Event: rawJSON(e.Record.Body)}
	if e.Event != nil {
		line.Type, line.From, line.To, line.Step, line.Time = e.Event.Type(), e.Event.From, e.Event.To, e.Event.Step, &e.Event.Time
		if !e.Started.IsZero() {
			offset := e.Event.Time.Sub(e.Started).Milliseconds()
			line.OffsetMS = &offset
		}
	}
	if e.Refused != nil {
		line.Type, line.Illegal = e.illegal()
		return line
	}
	line.N, line.Summary = e.Event.N, summary(e.Event.Data)
	return line
}

// illegal returns the type of a refused record, if it is known, and the reason.
func (e Entry) illegal() (events.Type, string) {
	var ill *reducer.IllegalError
	if errors.As(e.Refused, &ill) {
		return ill.Type, ill.Reason
	}
	return "", e.Refused.Error()
}

// Timeline writes the entries of runs, one on a line and in the same form for every command:
// number, time since the run's start (or time of day), states, type, summary. Lines before a
// reply tell what the model reasoned.
type Timeline struct {
	// Out gets the lines. Required.
	Out io.Writer
	// JSON writes a [Line] for each entry instead of text, Color colours text.
	JSON, Color bool
	// Reasoning shows all that models reasoned instead of one line.
	Reasoning bool
}

// Write writes an entry with one call of Out. The prefix begins its lines of text.
func (t *Timeline) Write(prefix string, e Entry) error {
	if t.JSON {
		encoder := json.NewEncoder(t.Out)
		encoder.SetEscapeHTML(false)
		return encoder.Encode(e.Line())
	}
	_, err := io.WriteString(t.Out, prefix+strings.Join(t.lines(e), "\n"+prefix)+"\n")
	return err
}

// The widths of an event's columns. A longer value moves the columns after it.
const (
	edgeWidth = 29
	typeWidth = 21
	dataWidth = 100
)

// lines returns the entry as lines of text without line ends.
func (t *Timeline) lines(e Entry) []string {
	p := Palette{t.Color}
	if e.Refused != nil {
		number := "-"
		if e.N > 0 {
			number = fmt.Sprint(e.N)
		}
		typ, reason := e.illegal()
		if typ != "" {
			reason = string(typ) + ": " + reason
		}
		return []string{fmt.Sprintf("%5s  %s", number, p.Red("not a legal event: "+Cut(reason, 2*dataWidth)))}
	}
	line := e.text(p)
	if e.wentToClient() {
		line += p.Yellow("  (waits for the run's client)")
	}
	return append(replyLines(e.Event.Data, t.Reasoning || e.Reasoning, p), line)
}

// EventLine returns an event as the timeline shows it, on one line without colours.
func EventLine(e *events.Event, started time.Time) string {
	return Entry{Event: e, Started: started}.text(Palette{})
}

func (e Entry) text(p Palette) string {
	edge := string(e.Event.From)
	if e.Event.From != e.Event.To {
		edge += " → " + string(e.Event.To)
	}
	clock := e.Event.Time.Local().Format("15:04:05.000")
	if !e.Started.IsZero() {
		clock = Elapsed(e.Event.Time.Sub(e.Started))
	}
	line := fmt.Sprintf("%5d  %s  %s  %s  %s", e.Event.N, p.Faint(fmt.Sprintf("%9s", clock)),
		p.State(e.Event.To, Pad(edge, edgeWidth)), p.Bold(Pad(string(e.Event.Type()), typeWidth)), summary(e.Event.Data))
	return strings.TrimRight(line, " ")
}

// wentToClient reports whether the event sends calls to the run's own client.
func (e Entry) wentToClient() bool {
	s, err := events.ParseSubject(e.Record.Subject)
	_, part := e.Event.Data.(*events.ToolCallResult)
	return err == nil && !part && s.Pool == events.ClientPool && (s.To == events.Acting || s.To == events.ParallelActing)
}

// summary returns an event's data on one line of at most 100 characters. It is empty if the
// type says everything.
func summary(p events.Payload) string { return Cut(events.Summary(p), dataWidth) }

// replyIndent is where the lines before a reply stand, beside the numbers of events.
const replyIndent = "       "

// replyLines returns what stands before a reply: that the server dropped context, and what
// the model reasoned, in one line or whole. Of reasoning that only the provider can read that
// is nothing, or its number of parts. There may be none.
func replyLines(data events.Payload, whole bool, p Palette) []string {
	f := events.FactsOf(data)
	if f == nil {
		return nil
	}
	lines := append(reasoningLines(f, whole, p), itemLines(f, whole, p)...)
	if d := f.ContextDropped; d != nil {
		warning := fmt.Sprintf("the server read only %d of at least %d tokens and dropped the rest", d.Read, d.Sent)
		lines = append([]string{replyIndent + p.Yellow(warning)}, lines...)
	}
	return lines
}

// maxItems bounds how many items and how many sources of a reply are shown, unless all are.
const maxItems = 5

// itemLines says what the provider's own tools did for a reply, and which sources it names.
func itemLines(f *events.Facts, whole bool, p Palette) (lines []string) {
	add := func(what string, all []string) {
		for i, line := range all {
			if i == maxItems && !whole {
				line = fmt.Sprintf("and %d more", len(all)-i)
			}
			lines = append(lines, replyIndent+p.Faint(terminal.Visible(what+": "+line)))
			if i == maxItems && !whole {
				return
			}
		}
	}
	add("provider", f.Reasoning.Items())
	var sources []string
	for _, c := range f.Citations {
		if line := cmp.Or(strings.TrimSpace(c.Title+" "+c.URL), c.Type); !slices.Contains(sources, line) {
			sources = append(sources, line)
		}
	}
	add("source", sources)
	return lines
}

func reasoningLines(f *events.Facts, whole bool, p Palette) []string {
	if len(f.Reasoning) == 0 && f.ReasoningRef == nil {
		return nil
	}
	text := f.Reasoning.Text()
	if text == "" && f.ReasoningRef == nil && (!whole || f.Reasoning.Opaque() == 0) {
		return nil // nothing that could be read, such as a signature
	}
	head := reasoned(text, f.Reasoning.Opaque(), f.ReasoningRef)
	lines := []string{head + Cut(text, dataWidth)}
	if whole && text != "" {
		lines = append([]string{strings.TrimSpace(head)}, strings.Split(strings.TrimRight(text, "\n"), "\n")...)
	}
	for i, line := range lines {
		lines[i] = replyIndent + p.Faint(terminal.Visible(line))
	}
	return lines
}
