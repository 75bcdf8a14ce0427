package entrystore

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

// tagKeys begins the keys that lead from tags to entries.
const tagKeys = "tag."

// The bounds of an entry: what memory holds goes into events and prompts, so no part of it may be large.
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

// Query chooses entries.
type Query struct {
	// Tags are those that an entry has to have all of; none: any entry.
	Tags []string
	// Value is what its value has to hold, in whatever case; empty: anything.
	Value string
	// Limit and MaxBytes bound what is returned: entries, and bytes of their JSON
	// text. At least one entry is returned if there is any. 0: [DefaultLimit] and [DefaultMaxBytes].
	Limit    int
	MaxBytes int
}

// Match reports whether an entry is asked for.
func (q Query) Match(e events.Entry) bool {
	for _, tag := range q.Tags {
		if _, has := slices.BinarySearch(e.Tags, tag); !has {
			return false
		}
	}
	return q.Value == "" || strings.Contains(strings.ToLower(e.Value), strings.ToLower(q.Value))
}

// Found is what a query found.
type Found struct {
	Entries []events.Entry
	// Total is how many match, returned or not.
	Total int
}

func (q Query) withDefaults() Query {
	if q.Limit <= 0 {
		q.Limit = DefaultLimit
	}
	if q.MaxBytes <= 0 {
		q.MaxBytes = DefaultMaxBytes
	}
	return q
}

// compareTags orders sets of tags: fewer tags first, then by the tags.
func compareTags(a, b []string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), slices.Compare(a, b))
}

// tagsKey names a set of tags: the SHA-256 of its JSON text, in hexadecimal.
func tagsKey(tags []string) string {
	text, err := json.Marshal(tags)
	if err != nil {
		panic("a list of strings does not marshal: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// tagKey is the part of a bucket's keys that leads from a tag to its entries.
func tagKey(tag string) string {
	sum := sha256.Sum256([]byte(tag))
	return tagKeys + hex.EncodeToString(sum[:16]) + "."
}

// takeFirst returns the first of the entries that fit into a query's bounds.
func takeFirst(entries []events.Entry, q Query) []events.Entry {
	q = q.withDefaults()
	size := 0
	for i, e := range entries {
		if size += EntryBytes(e); i > 0 && (i >= q.Limit || size > q.MaxBytes) {
			return entries[:i]
		}
	}
	return entries
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

// CheckTags says what is wrong with a set of tags.
func CheckTags(tags []string) error {
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

// CheckEntry says what is wrong with an entry that is to be stored.
func CheckEntry(e events.Entry) error {
	if err := CheckTags(e.Tags); err != nil {
		return err
	}
	if n := jsonBytes(e.Value); n > MaxValueBytes {
		return fmt.Errorf("the value has %d bytes as JSON text, at most %d are allowed; split it: %w", n, MaxValueBytes, journal.ErrTooLarge)
	}
	return nil
}

// first holds the first sets of tags in the order of [compareTags], and
// counts them all.
type first struct {
	limit int
	seen  map[string]struct{}
	tags  [][]string
}

func newFirst(limit int) *first { return &first{limit: limit, seen: map[string]struct{}{}} }

// add takes a set, and returns one that has to make way for it.
func (f *first) add(tags []string) (out []string) {
	key := tagsKey(tags)
	if _, known := f.seen[key]; known {
		return nil
	}
	f.seen[key] = struct{}{}
	at, _ := slices.BinarySearchFunc(f.tags, tags, compareTags)
	if at >= f.limit {
		return tags
	}
	f.tags = slices.Insert(f.tags, at, tags)
	if len(f.tags) > f.limit {
		out, f.tags = f.tags[f.limit], f.tags[:f.limit]
	}
	return out
}

type matches struct {
	q       Query
	first   *first
	entries map[string]events.Entry
}

func (m *matches) add(body []byte) {
	var e events.Entry
	if json.Unmarshal(body, &e) != nil || !m.q.Match(e) {
		return
	}
	m.entries[tagsKey(e.Tags)] = e
	if out := m.first.add(e.Tags); out != nil {
		delete(m.entries, tagsKey(out))
	}
}

func (m *matches) found() Found {
	all := make([]events.Entry, 0, len(m.first.tags))
	for _, tags := range m.first.tags {
		all = append(all, m.entries[tagsKey(tags)])
	}
	return Found{Entries: takeFirst(all, m.q), Total: len(m.first.seen)}
}
