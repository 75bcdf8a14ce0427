package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// DeadLog is the log that [ReadDead] reads.
type DeadLog interface {
	journal.Log
	ports.Runless
	ports.Dropped
}

// Dead is a run that ended because it could not be processed, or a message that belongs to no
// run.
type Dead struct {
	// Run is the run, Stray the message as <shard>:<seq>. One of them is set.
	Run       string `json:"run,omitempty"`
	Stray     string `json:"stray,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	// N is the event that ended the run.
	N       uint64    `json:"n,omitempty"`
	Code    string    `json:"code"`
	Message string    `json:"message"`
	Time    time.Time `json:"time"`
	Dropped bool      `json:"dropped,omitempty"`
}

// DeadOptions select what [ReadDead] lists.
type DeadOptions struct {
	// Namespace is that of the runs. Messages of no run are always listed.
	Namespace string
	// All lists every run that ended by a FatalError.
	All bool
	// Dropped also lists what was dropped.
	Dropped bool
}

// CodeStray is the code of a message that belongs to no run.
const CodeStray = "stray"

// systemCodes are the codes of ends that neither the model nor the agent caused. A retry can
// succeed.
var systemCodes = []string{
	reducer.CodePoison, reducer.CodeAttemptsExhausted, "stalled", reducer.CodeNoHandler, reducer.CodeInvalidTransition,
	reducer.CodeSafetyCap, reducer.CodeNoCurrentCall,
	string(llm.KindRateLimited), string(llm.KindOverloaded), string(llm.KindNetwork),
}

// ReadDead lists dead runs and messages, oldest first, each run once. It reads only the
// records that end runs and folds no run, so it believes an end that is not legal in its run.
// `replay verify` finds that out.
func ReadDead(ctx context.Context, log DeadLog, codec *events.Codec, o DeadOptions) ([]Dead, error) {
	dropped, err := log.Dropped(ctx)
	if err != nil {
		return nil, err
	}
	all := []Dead{}
	add := func(d Dead, key string) {
		_, d.Dropped = slices.BinarySearch(dropped, key)
		if !d.Dropped || o.Dropped {
			all = append(all, d)
		}
	}
	for shard := range log.Shards() {
		ended := map[string]Dead{}
		filter := journal.Filter{Namespace: o.Namespace, To: events.Errored}
		for rec, err := range log.Scan(ctx, shard, filter, 0) {
			if err != nil {
				return nil, err
			}
			// An end that was not legal poisons the run. Its true end comes later and
			// replaces this entry.
			if d, ok := deadRun(codec, log.Shards(), rec); ok {
				ended[d.Run] = d
			}
		}
		for _, d := range ended {
			if o.All || slices.Contains(systemCodes, d.Code) {
				add(d, d.Run)
			}
		}
		for rec, err := range log.Runless(ctx, shard) {
			if err != nil {
				return nil, err
			}
			d := Dead{
				Stray: fmt.Sprintf("%d:%d", shard, rec.Seq), Code: CodeStray, Time: rec.Stored,
				Message: fmt.Sprintf("%d bytes on %s", len(rec.Body), strings.ToValidUTF8(rec.Subject, "\uFFFD")),
			}
			add(d, messageKey(shard, rec.Seq))
		}
	}
	slices.SortFunc(all, func(x, y Dead) int {
		return cmp.Or(x.Time.Compare(y.Time), cmp.Compare(x.Run, y.Run), cmp.Compare(x.Stray, y.Stray))
	})
	return all, nil
}

// deadRun reads a record that ends a run by a FatalError.
func deadRun(codec *events.Codec, shards int, rec journal.Record) (Dead, bool) {
	s, err := events.ParseSubject(rec.Subject)
	if err != nil || s.CheckShard(shards) != nil {
		return Dead{}, false
	}
	e, err := codec.Decode(rec.Body)
	if err != nil || e.Run != s.Run.ID {
		return Dead{}, false
	}
	fatal, ok := e.Data.(*events.FatalError)
	if !ok || s.From != e.From && s.From != events.Control && fatal.Poison.N == 0 {
		return Dead{}, false // every role may end a poisoned run
	}
	d := Dead{Run: s.Run.ID, Namespace: s.Run.Namespace, N: e.N, Code: fatal.Code, Message: fatal.Message, Time: e.Time}
	if poison := fatal.Poison; poison.N > 0 {
		d.Message += fmt.Sprintf(" (event %d: %s)", poison.N, poison.Reason)
	}
	return d, true
}

func messageKey(shard int, seq uint64) string { return fmt.Sprintf("%d-%d", shard, seq) }

// DropKey returns the key under which a listed run or message is dropped.
func DropKey(name string) (string, error) {
	if shard, seq, ok := strings.Cut(name, ":"); ok {
		s, errShard := strconv.Atoi(shard)
		n, errSeq := strconv.ParseUint(seq, 10, 64)
		if errShard != nil || errSeq != nil || s < 0 || n == 0 {
			return "", fmt.Errorf("%q is not a message: give it as listed, <shard>:<seq>", name)
		}
		return messageKey(s, n), nil
	}
	if err := events.CheckID(name); err != nil {
		return "", fmt.Errorf("%q is neither a run nor a message <shard>:<seq>: %w", name, err)
	}
	return name, nil
}

// WriteDead writes the list as Table, JSON or YAML.
func WriteDead(w io.Writer, f Format, dead []Dead) error {
	if f != Table {
		return Write(w, f, dead)
	}
	rows := make([][]string, len(dead))
	for i, d := range dead {
		name, n := d.Run, strconv.FormatUint(d.N, 10)
		if d.Stray != "" {
			name, n = d.Stray, ""
		}
		rows[i] = []string{name, n, Plain(d.Code), timestamp(d.Time), Cut(d.Message, dataWidth)}
	}
	return WriteTable(w, []string{"RUN", "N", "CODE", "TIME", "MESSAGE"}, rows)
}

// RetryAt returns the event from which to fork a run that ended by a FatalError to retry it:
// the last one before the poison, or before the first failed attempt of the work that ended
// the run.
func RetryAt(ctx context.Context, log journal.Log, codec *events.Codec, run events.Run) (uint64, error) {
	var n uint64
	var last *events.Event
	failures := map[string]uint64{}
	exhausted := "" // the key of the last failure, if nothing followed it
	for rec, err := range log.Read(ctx, run, 0) {
		if err != nil {
			return 0, err
		}
		if _, err := events.ParseSubject(rec.Subject); err != nil {
			continue // it belongs to no run
		}
		n++
		if last, err = codec.Decode(rec.Body); err != nil {
			continue
		}
		switch p := last.Data.(type) {
		case *events.LLMAttemptFailed:
			if p.Interrupted() {
				break
			}
			exhausted = p.Key
			if failures[p.Key] == 0 {
				failures[p.Key] = n
			}
		case *events.FatalError:
		default:
			exhausted = ""
		}
	}
	if n == 0 {
		return 0, errors.New("there is no run with that id")
	}
	fatal, ok := data[*events.FatalError](last)
	if !ok {
		return 0, errors.New("it did not end by an error that can be retried")
	}
	at := n - 1
	switch {
	case fatal.Poison.N > 0:
		at = fatal.Poison.N - 1
	case failures[exhausted] > 0:
		at = failures[exhausted] - 1
	}
	if at == 0 {
		return 0, errors.New("its first event is the poison, so there is nothing to continue from: start another run")
	}
	return at, nil
}

// data returns an event's data if it has that type. e may be nil.
func data[P events.Payload](e *events.Event) (p P, ok bool) {
	if e != nil {
		p, ok = e.Data.(P)
	}
	return p, ok
}

// IsDead reports whether the list has an entry with this key.
func IsDead(dead []Dead, key string) bool {
	return slices.ContainsFunc(dead, func(d Dead) bool {
		own, err := DropKey(d.Run + d.Stray)
		return err == nil && own == key
	})
}
