package journal

import (
	"errors"
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
)

// CheckAppend reports what is wrong with an append before anything is sent:
// every adapter calls it first, since a store may accept silently what lies
// outside its subjects. It returns an error if there is no entry, if the run is
// not in its own shard of the given number of shards, if an entry belongs to
// another run or its subject is malformed, and ErrTooLarge if a body is larger
// than [MaxBody] or there are more than [MaxBatch] entries.
func CheckAppend(shards int, run events.Run, entries []Entry) error {
	if len(entries) == 0 {
		return errors.New("append: no entries")
	}
	if len(entries) > MaxBatch {
		return fmt.Errorf("append: %d entries at once, at most %d are allowed: %w", len(entries), MaxBatch, ErrTooLarge)
	}
	if err := CheckRun(shards, run); err != nil {
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
		if len(e.Body) > MaxBody {
			return fmt.Errorf("append: entry %d has %d bytes, at most %d are allowed: %w", i+1, len(e.Body), MaxBody, ErrTooLarge)
		}
	}
	return nil
}

// CheckRun reports an error unless the run's name is well formed and its shard
// is the one that its id belongs to.
func CheckRun(shards int, run events.Run) error {
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

// CheckSubject reports why a stored record with this subject belongs to no run of
// a log with so many shards; nil if it belongs to one.
func CheckSubject(shards int, subject string) error {
	s, err := events.ParseSubject(subject)
	if err != nil {
		return err
	}
	return s.CheckShard(shards)
}

// CheckDropKey reports an error unless the key is one for [Dropped].
func CheckDropKey(key string) error {
	valid := func(r rune) bool {
		return r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	}
	if key == "" || len(key) > 100 || strings.ContainsFunc(key, func(r rune) bool { return !valid(r) }) {
		return fmt.Errorf("drop: %q is not a key of [A-Za-z0-9-]", key)
	}
	return nil
}

// CheckTools reports what is wrong with an announcement of tools: every adapter of
// [Directory] calls it first.
func CheckTools(pool string, tools []events.ToolSpec) error {
	if !events.ValidToken(pool) {
		return fmt.Errorf("announce tools: pool %q is not a token of [a-z0-9][a-z0-9_-]{0,62}", pool)
	}
	for _, t := range tools {
		if t.Pool != pool {
			return fmt.Errorf("announce tools of pool %s: tool %s is of pool %q", pool, t.Name, t.Pool)
		}
		if events.Reserved(t.Name) {
			return fmt.Errorf("announce tools of pool %s: tool %s: names that begin with %s are Moorebus' own", pool, t.Name, events.ReservedPrefix)
		}
	}
	return nil
}

// CheckShard reports an error unless there is such a shard.
func CheckShard(shards, shard int) error {
	if shard < 0 || shard >= shards {
		return fmt.Errorf("shard %d: the log has shards 0 to %d", shard, shards-1)
	}
	return nil
}

// Subject returns the subject filter of a shard's records that match; a
// negative shard stands for every shard.
func (f Filter) Subject(shard int) string {
	text := events.EdgeFilter(max(shard, 0), f.Namespace, f.From, f.To, f.Pool)
	tokens := strings.Split(text, ".")
	if shard < 0 {
		tokens[1] = events.Wildcard
	}
	if f.Run != "" {
		tokens[len(tokens)-1] = f.Run
	}
	return strings.Join(tokens, ".")
}

// Match reports whether a subject has the form of an event's and every field
// that the filter names.
func (f Filter) Match(subject string) bool {
	rest := subject
	want := [7]string{2: f.Namespace, 3: string(f.From), 4: string(f.To), 5: f.Pool, 6: f.Run}
	for i, token := range want {
		got, tail, more := strings.Cut(rest, ".")
		if more != (i < len(want)-1) || (token != "" && got != token) {
			return false
		}
		rest = tail
	}
	return true
}
