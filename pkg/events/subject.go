package events

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	subjectRoot = "moore"
	// FeedPrefix is what a stored event's subject gets in front when the stream
	// republishes it.
	FeedPrefix = "feed."
	// DefaultPool is the pool of an event that concerns no particular pool.
	DefaultPool = "default"
	// AgentsPool is the pool reserved for sub-agents.
	AgentsPool = "agents"
	// DefaultNamespace is the namespace of a run that names none.
	DefaultNamespace = "default"
)

// Run names one run's log: where it lies and what it is called.
type Run struct {
	Shard     int
	Namespace string
	ID        string
}

// NewRun places a run id among the given number of shards (1 or more).
func NewRun(namespace, id string, shards int) Run {
	return Run{Shard: ShardOf(id, shards), Namespace: namespace, ID: id}
}

// ShardOf returns the shard of a run id: FNV-1a (32 bit) of the id, modulo the
// number of shards.
func ShardOf(id string, shards int) int {
	if shards <= 1 {
		return 0
	}
	const offset, prime = 2166136261, 16777619
	h := uint32(offset)
	for i := range len(id) {
		h = (h ^ uint32(id[i])) * prime
	}
	return int(h % uint32(shards))
}

// Filter returns the one subject filter that matches exactly this run's log.
// Every append is conditional on it, and conditions only exclude each other
// while all writers use the same string, so it is built nowhere else.
func (r Run) Filter() string {
	return subjectRoot + "." + strconv.Itoa(r.Shard) + "." + r.Namespace + ".*.*.*." + r.ID
}

// Subject is the subject of one stored event:
// `moore.<shard>.<ns>.<from>.<to>.<pool>.<run>`.
type Subject struct {
	Run  Run
	From State
	To   State
	Pool string
}

// String returns the subject as it stands on the bus.
func (s Subject) String() string {
	var room [192]byte
	b := append(room[:0], subjectRoot+"."...)
	b = strconv.AppendInt(b, int64(s.Run.Shard), 10)
	b = append(append(b, '.'), s.Run.Namespace...)
	b = append(append(b, '.'), s.From...)
	b = append(append(b, '.'), s.To...)
	b = append(append(b, '.'), s.Pool...)
	b = append(append(b, '.'), s.Run.ID...)
	return string(b)
}

// ParseSubject reads a stored event's subject, with or without the feed's
// prefix. The tokens are checked for their form; whether the shard is the run's
// depends on the number of shards, see [Subject.CheckShard].
func ParseSubject(text string) (Subject, error) {
	rest := strings.TrimPrefix(text, FeedPrefix)
	var tokens [7]string
	for i := range tokens {
		token, tail, more := strings.Cut(rest, ".")
		if more != (i < len(tokens)-1) {
			return Subject{}, fmt.Errorf("subject %q: want %d tokens, moore.<shard>.<ns>.<from>.<to>.<pool>.<run>", text, len(tokens))
		}
		tokens[i], rest = token, tail
	}
	if tokens[0] != subjectRoot {
		return Subject{}, fmt.Errorf("subject %q: does not begin with %q", text, subjectRoot)
	}
	shard, err := strconv.Atoi(tokens[1])
	if err != nil || shard < 0 || strconv.Itoa(shard) != tokens[1] {
		return Subject{}, fmt.Errorf("subject %q: shard %q is not a number", text, tokens[1])
	}
	for _, token := range tokens[2:6] {
		if !ValidToken(token) {
			return Subject{}, fmt.Errorf("subject %q: %q is not a token of [a-z0-9][a-z0-9_-]{0,62}", text, token)
		}
	}
	if err := CheckID(tokens[6]); err != nil {
		return Subject{}, fmt.Errorf("subject %q: run: %w", text, err)
	}
	return Subject{
		Run:  Run{Shard: shard, Namespace: tokens[2], ID: tokens[6]},
		From: State(tokens[3]), To: State(tokens[4]), Pool: tokens[5],
	}, nil
}

// CheckShard reports an error when the subject's shard is not the one that the
// run id belongs to.
func (s Subject) CheckShard(shards int) error {
	if want := ShardOf(s.Run.ID, shards); want != s.Run.Shard {
		return fmt.Errorf("subject %q: run belongs to shard %d of %d", s, want, shards)
	}
	return nil
}

// Wildcard narrows a [Filter] position to everything.
const Wildcard = "*"

// StreamName returns the name of the stream of a shard.
func StreamName(shard int) string { return "MOORE_" + strconv.Itoa(shard) }
