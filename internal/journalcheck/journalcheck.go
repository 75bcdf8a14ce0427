// Package journalcheck is what every adapter of the ports in pkg/journal does in the
// same way: it checks what it is given before it sends anything.
package journalcheck

import (
	"errors"
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Append reports what is wrong with an append before anything is sent:
// every adapter calls it first, since a store may accept silently what lies
// outside its subjects. It returns an error if there is no entry, if the run is
// not in its own shard of the given number of shards, if an entry belongs to
// another run or its subject is malformed, and [journal.ErrTooLarge] if a body is larger
// than [journal.MaxBody] or there are more than [journal.MaxBatch] entries.
func Append(shards int, run events.Run, entries []journal.Entry) error {
	if len(entries) == 0 {
		return errors.New("append: no entries")
	}
	if len(entries) > journal.MaxBatch {
		return fmt.Errorf("append: %d entries at once, at most %d are allowed: %w", len(entries), journal.MaxBatch, journal.ErrTooLarge)
	}
	if err := Run(shards, run); err != nil {
		return fmt.Errorf("append: %w", err)
	}
	for i, e := range entries {
		if e.Subject.Run != run {
			return fmt.Errorf("append: entry %d is on %s and not of run %s", i+1, e.Subject, run.ID)
		}
		for _, token := range [...]string{string(e.Subject.From), string(e.Subject.To), e.Subject.Pool} {
			if !events.ValidToken(token) {
				return fmt.Errorf("append: entry %d: %q in subject %s is not a token", i+1, token, e.Subject)
			}
		}
		if len(e.Body) > journal.MaxBody {
			return fmt.Errorf("append: entry %d has %d bytes, at most %d are allowed: %w", i+1, len(e.Body), journal.MaxBody, journal.ErrTooLarge)
		}
	}
	return nil
}

// Run reports an error unless the run's name is well formed and its shard
// is the one that its id belongs to.
func Run(shards int, run events.Run) error {
	if err := events.CheckID(run.ID); err != nil {
		return fmt.Errorf("run %q: %w", run.ID, err)
	}
	if !events.ValidToken(run.Namespace) {
		return fmt.Errorf("run %s: namespace %q is not a token of [a-z0-9][a-z0-9_-]{0,62}", run.ID, run.Namespace)
	}
	if want := events.ShardOf(run.ID, shards); run.Shard != want {
		return fmt.Errorf("run %s: shard %d given, but it belongs to shard %d of %d", run.ID, run.Shard, want, shards)
	}
	return nil
}

// Shard reports an error unless there is such a shard.
func Shard(shards, shard int) error {
	if shard < 0 || shard >= shards {
		return fmt.Errorf("shard %d: the log has shards 0 to %d", shard, shards-1)
	}
	return nil
}

// Subject reports why a stored record with this subject belongs to no run of
// a log with so many shards; nil if it belongs to one.
func Subject(shards int, subject string) error {
	s, err := events.ParseSubject(subject)
	if err != nil {
		return err
	}
	return s.CheckShard(shards)
}

// MaxTimerData is the most data that a timer carries, in bytes.
const MaxTimerData = 4 << 10

// Timer reports what is wrong with a timer before anything is sent: a run
// that is not in its own shard of the given number of shards, a kind that is no
// token, or [journal.ErrTooLarge] for its data.
func Timer(shards int, run events.Run, kind string, data []byte) error {
	if err := Run(shards, run); err != nil {
		return fmt.Errorf("timer: %w", err)
	}
	if !events.ValidToken(kind) {
		return fmt.Errorf("timer of run %s: kind %q is not a token of [a-z0-9][a-z0-9_-]{0,62}", run.ID, kind)
	}
	if len(data) > MaxTimerData {
		return fmt.Errorf("timer %s of run %s: %d bytes of data, at most %d are allowed: %w", kind, run.ID, len(data), MaxTimerData, journal.ErrTooLarge)
	}
	return nil
}

// Key reports an error unless a key of a bucket is one token or several with dots between them, none
// of which is a wildcard.
func Key(key string) error {
	valid := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_=/.", r)
	}
	if strings.Contains("."+key+".", "..") || strings.ContainsFunc(key, func(r rune) bool { return !valid(r) }) {
		return fmt.Errorf("%q is not a key", key)
	}
	return nil
}
