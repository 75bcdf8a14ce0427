// Package dead lists the runs that ended because they could not be processed, with the messages
// of the log that belong to no run, hides them from that list, and retries runs by forking them.
package dead

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
)

// Dead is a run that ended because it could not be processed, or a message that belongs to no
// run.
type Dead struct {
	// Run is the run, Stray the message as <shard>:<seq>. One of them is set.
	Run       string `json:"run,omitempty"`
	Stray     string `json:"stray,omitempty" jsonschema:"A message of no run, as SHARD:SEQ."`
	Namespace string `json:"namespace,omitempty"`
	// N is the event that ended the run.
	N       uint64    `json:"n,omitempty" jsonschema:"The event that ended the run."`
	Code    string    `json:"code"`
	Message string    `json:"message"`
	Time    time.Time `json:"time"`
	Dropped bool      `json:"dropped,omitempty"`
}

// Options select what is listed.
type Options struct {
	All     bool `query:"all" doc:"true: every run that ended by a FatalError." flag:"every run that ended by a FatalError"`
	Dropped bool `query:"dropped" doc:"true: also what was dropped." flag:"also what was dropped"`
}

// CodeStray is the code of a message that belongs to no run.
const CodeStray = "stray"

// systemCodes are the codes of ends that neither the model nor the agent caused. A retry can
// succeed.
var systemCodes = []string{
	codes.Poison, codes.AttemptsExhausted, "stalled", codes.NoHandler, codes.InvalidTransition,
	codes.SafetyCap, codes.NoCurrentCall,
	string(llm.KindRateLimited), string(llm.KindOverloaded), string(llm.KindNetwork),
}

// BySystem reports whether a FatalError of that code was caused neither by the model nor by the
// agent, so that the run is in the list of the dead.
func BySystem(code string) bool { return slices.Contains(systemCodes, code) }

// Letters lists, drops and retries the dead. It is safe for concurrent use.
type Letters struct {
	a      *runs.Editor
	forker *forking.Forker
}

// New returns the Letters of the dead runs of a. forker makes the runs that retry them.
func New(a *runs.Editor, forker *forking.Forker) *Letters { return &Letters{a, forker} }

// log is the log with the operator's ports.
type log interface {
	journal.Log
	ports.Runless
	kv.Store
}

func (k *Letters) log() (log, error) {
	if l, has := k.a.Log.(log); has {
		return l, nil
	}
	return nil, refusal.New(refusal.Unavailable, refusal.CodeUnavailable, "this bus does not list messages without a run")
}

// Dead lists the dead runs of the namespace and the messages of no run, which belong to no
// namespace: oldest first, each run once. It reads only the records that end runs and folds no
// run, so it believes an end that is not legal in its run. `replay verify` finds that out.
func (k *Letters) Dead(ctx context.Context, ns string, o Options) ([]Dead, error) {
	ns, err := k.a.CheckNamespace(ns)
	if err != nil {
		return nil, err
	}
	log, err := k.log()
	if err != nil {
		return nil, err
	}
	hidden, err := dropped(ctx, log)
	if err != nil {
		return nil, err
	}
	all := []Dead{}
	add := func(d Dead, key string) {
		_, d.Dropped = slices.BinarySearch(hidden, key)
		if !d.Dropped || o.Dropped {
			all = append(all, d)
		}
	}
	for shard := range log.Shards() {
		ended := map[string]Dead{}
		filter := journal.Filter{Namespace: ns, To: events.Errored}
		for rec, err := range log.Scan(ctx, shard, filter, 0) {
			if err != nil {
				return nil, err
			}
			// An end that was not legal poisons the run. Its true end comes later and
			// replaces this entry.
			if d, ok := deadRun(k.a.Store.Machine().Codec(), log.Shards(), rec); ok {
				ended[d.Run] = d
			}
		}
		for _, d := range ended {
			if o.All || BySystem(d.Code) {
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

// Key returns the key under which a listed run or message is dropped.
func Key(name string) (string, error) {
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

// DropDead hides listed runs and messages, all or none: a name that is not in the list of all dead runs
// and messages is a CodeNotDead. What is hidden stays in the log.
func (k *Letters) DropDead(ctx context.Context, ns string, names []string) error {
	listed, err := k.Dead(ctx, ns, Options{All: true, Dropped: true})
	if err != nil {
		return err
	}
	there := make(map[string]bool, len(listed))
	for _, d := range listed {
		there[d.key()] = true
	}
	keys := make([]string, len(names))
	for i, name := range names {
		if keys[i], err = Key(name); err != nil {
			return refusal.New(refusal.Invalid, refusal.CodeBadRequest, "names: %s", err.Error())
		}
		if !there[keys[i]] {
			return refusal.New(refusal.NotFound, refusal.CodeNotDead, "%s is not in the list of dead runs and messages; nothing was dropped", name)
		}
	}
	log, err := k.log()
	if err != nil {
		return err
	}
	for _, key := range keys {
		if err := drop(ctx, log, key); err != nil {
			return err
		}
	}
	return nil
}

// key is the key under which the entry is dropped.
func (d *Dead) key() string {
	key, _ := Key(d.Run + d.Stray) // a name of the list has one
	return key
}

// Retried is the fork that retries a run.
type Retried struct {
	forking.Result
	// At is the event of the run after which it continues.
	At uint64 `json:"at" jsonschema:"The event of the run after which the new run continues."`
}

// Retry forks a run that ended by a FatalError: after the last event before the poison, or before
// the first failed attempt of the work that ended the run. key is that of [forking.Request].
// Refusals are those of a fork, and these conflicts: not_dead if the run did not end so,
// run_poisoned if nothing precedes the poison.
func (k *Letters) Retry(ctx context.Context, ns, id, key string) (Retried, error) {
	run, err := k.a.Place(ns, id)
	if err != nil {
		return Retried{}, err
	}
	at, err := k.retryAt(ctx, run)
	if err != nil {
		return Retried{}, err
	}
	fork, err := k.forker.Fork(ctx, ns, id, forking.Request{At: at, Key: key})
	return Retried{fork, at}, err
}

func (k *Letters) retryAt(ctx context.Context, run events.Run) (uint64, error) {
	var n uint64
	var last *events.Event
	failures := map[string]uint64{}
	exhausted := "" // the key of the last failure, if nothing followed it
	for rec, err := range k.a.Log.Read(ctx, run, 0) {
		if err != nil {
			return 0, err
		}
		if _, err := events.ParseSubject(rec.Subject); err != nil {
			continue // it belongs to no run
		}
		n++
		if last, err = k.a.Store.Machine().Codec().Decode(rec.Body); err != nil {
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
		return 0, k.a.Missing(ctx, run)
	}
	var fatal *events.FatalError
	if last != nil {
		fatal, _ = last.Data.(*events.FatalError)
	}
	if fatal == nil {
		return 0, refusal.New(refusal.Conflict, refusal.CodeNotDead, "the run did not end by an error that can be retried")
	}
	at := n - 1
	switch {
	case fatal.Poison.N > 0:
		at = fatal.Poison.N - 1
	case failures[exhausted] > 0:
		at = failures[exhausted] - 1
	}
	if at == 0 {
		return 0, refusal.New(refusal.Conflict, refusal.CodeRunPoisoned, "the run's first event is the poison, so there is nothing to continue from: start another run")
	}
	return at, nil
}
