package journalcheck

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// The bounds of an entry of storage: what memory holds goes into events and
// prompts, so no part of it may be large.
const (
	// MaxTags is how many tags an entry has at most, MaxTagBytes how long one is.
	MaxTags     = 16
	MaxTagBytes = 128
	// MaxValueBytes bounds a value, as JSON text.
	MaxValueBytes = 64 << 10
)

// The defaults of a query.
const (
	DefaultLimit    = 20
	DefaultMaxBytes = 32 << 10
)

// WithDefaults returns the query with its bounds.
func WithDefaults(q journal.StorageQuery) journal.StorageQuery {
	if q.Limit <= 0 {
		q.Limit = DefaultLimit
	}
	if q.MaxBytes <= 0 {
		q.MaxBytes = DefaultMaxBytes
	}
	return q
}

// CompareTags orders sets of tags: fewer tags first, then by the tags.
func CompareTags(a, b []string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), slices.Compare(a, b))
}

// TagsKey names a set of tags: the SHA-256 of its JSON text, in hexadecimal.
func TagsKey(tags []string) string {
	text, err := json.Marshal(tags)
	if err != nil {
		panic("a list of strings does not marshal: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// TakeEntries returns the first of the entries that fit into a query's bounds.
func TakeEntries(entries []events.Entry, q journal.StorageQuery) []events.Entry {
	q = WithDefaults(q)
	size := 0
	for i, e := range entries {
		if size += EntryBytes(e); i > 0 && (i >= q.Limit || size > q.MaxBytes) {
			return entries[:i]
		}
	}
	return entries
}

// ParseStorageOf reads NAMESPACE/AGENT.
func ParseStorageOf(text string) (journal.StorageOf, error) {
	namespace, agent, _ := strings.Cut(text, "/")
	o := journal.StorageOf{Namespace: namespace, Agent: agent}
	return o, o.Check()
}

// EntryBytes is the size of an entry as JSON text.
func EntryBytes(e events.Entry) int { return jsonBytes(e) }

func jsonBytes(v any) int {
	text, err := json.Marshal(v)
	if err != nil {
		panic("an entry does not marshal: " + err.Error())
	}
	return len(text)
}

// Tags says what is wrong with a set of tags.
func Tags(tags []string) error {
	switch {
	case len(tags) == 0:
		return errors.New("there is no tag; give at least one")
	case len(tags) > MaxTags:
		return fmt.Errorf("there are %d tags, at most %d are allowed: %w", len(tags), MaxTags, journal.ErrTooLarge)
	}
	for i, tag := range tags {
		switch {
		case tag == "" || !utf8.ValidString(tag) || strings.Contains(tag, " "):
			return fmt.Errorf("%q is not a tag: it is empty, not UTF-8 or has spaces", tag)
		case len(tag) > MaxTagBytes:
			return fmt.Errorf("the tag %.20q… has %d bytes, at most %d are allowed: %w", tag, len(tag), MaxTagBytes, journal.ErrTooLarge)
		case i > 0 && tags[i-1] >= tag:
			return errors.New("the tags are not a sorted set")
		}
	}
	return nil
}

// Entry says what is wrong with an entry that is to be stored.
func Entry(e events.Entry) error {
	if err := Tags(e.Tags); err != nil {
		return err
	}
	if n := jsonBytes(e.Value); n > MaxValueBytes {
		return fmt.Errorf("the value has %d bytes as JSON text, at most %d are allowed; split it: %w", n, MaxValueBytes, journal.ErrTooLarge)
	}
	return nil
}
