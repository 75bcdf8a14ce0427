package history

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/internal/history/fold"
	"github.com/moorebus/moorebus/internal/history/query"
	"github.com/moorebus/moorebus/internal/history/store"
	"github.com/moorebus/moorebus/internal/history/words"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// search finds texts.
func (v *views) search(ctx context.Context, in Texts) (out Hits, err error) {
	at := place{First: v.c.Store.Now()}
	var after *store.Hit
	if in.Cursor != "" {
		if at, err = parsePlace(in.Cursor); err != nil {
			return out, err
		}
		after = &store.Hit{At: at.At, ID: at.ID}
	}
	if in.Query == "" {
		return out, route.BadParameter("query: is missing")
	}
	limit, err := bound(in.Limit, defaultHits, maxHits)
	if err != nil {
		return out, err
	}
	which, err := v.which(ctx, in.Namespace, in.Query, at.First)
	if err != nil {
		return out, err
	}
	var found []store.Hit
	out.Behind.Behind, err = v.use(ctx, func(s *store.Store) error {
		found, err = s.Search(ctx, which, after, limit+1)
		return failed(err)
	})
	if err != nil {
		return out, err
	}
	if len(found) > limit {
		found = found[:limit]
		last := found[limit-1]
		out.Next = place{at.First, last.At, last.ID}.String()
	}
	out.Hits, err = v.quote(ctx, which, found)
	return out, err
}

// quote reads what hits say. It leaves out those that the log has no more.
func (v *views) quote(ctx context.Context, which store.Select, found []store.Hit) ([]Hit, error) {
	byRun := map[string]map[uint64][]history.Text{}
	for _, h := range found {
		if byRun[h.Run] == nil {
			byRun[h.Run] = map[uint64][]history.Text{}
		}
		byRun[h.Run][h.N] = nil
	}
	for id, texts := range byRun {
		if err := v.read(ctx, v.c.Store.Place(which.Namespace, id), texts); err != nil {
			return nil, err
		}
	}
	hits := []Hit{}
	for _, h := range found {
		texts := byRun[h.Run][h.N]
		i, snippet := v.choose(ctx, which.Query, h.Kind, texts)
		if i < 0 {
			continue
		}
		byRun[h.Run][h.N] = slices.Delete(texts, i, i+1)
		if h.Kind == history.CallError {
			h.Kind = history.Result
		}
		hits = append(hits, Hit{h.Run, h.N, h.Kind, snippet, h.At})
	}
	return hits, nil
}

// choose returns which of an event's texts was found, and what it says; -1: none is of the kind. Of several the
// last comes first, as in the store.
func (v *views) choose(ctx context.Context, q query.Query, kind history.Kind, texts []history.Text) (found int, snippet string) {
	found = -1
	for i, t := range slices.Backward(texts) {
		if t.Kind != kind {
			continue
		}
		if says, matches := v.snippet(ctx, q, t); matches || found < 0 {
			found, snippet = i, says
			if matches {
				return found, snippet
			}
		}
	}
	return found, snippet
}

// read reads the texts of those events of a run that are keys.
func (v *views) read(ctx context.Context, run events.Run, texts map[uint64][]history.Text) error {
	missing := len(texts)
	for rec, err := range v.c.Log.Read(ctx, run, 0) {
		if errors.Is(err, journal.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		e := v.c.Decode(rec)
		if e == nil {
			continue
		}
		if _, asked := texts[e.N]; asked {
			texts[e.N] = fold.Texts(e)
			if missing--; missing == 0 {
				return nil
			}
		}
	}
	return nil
}

// snippet returns what a text says around the first word of a query, and whether it is what the query asks
// for. Of a text that was too large for the log it has what can be read.
func (v *views) snippet(ctx context.Context, q query.Query, t history.Text) (string, bool) {
	if blobs := v.c.Config().Blobs; t.Ref != nil && blobs != nil {
		if data, err := blobs.Blob(ctx, *t.Ref); err == nil {
			t = fold.Offloaded(t, data)
		}
	}
	at, matches := locate(q, t)
	return cutAround(t.Text, at), matches
}

// textFields are the fields that texts are compared with, each with the kind that they must have.
var textFields = map[query.Field]history.Kind{
	query.AnyText: "", query.Task: history.Task, query.Answer: history.Answer, query.Error: history.Error, query.CallError: history.CallError,
}

// locate returns where in a text the first word of a query is, in bytes, and whether all its text terms match.
func locate(q query.Query, t history.Text) (first int, matches bool) {
	at := map[string]int{}
	for word, from := range places(t.Text) {
		if _, there := at[word]; !there {
			at[word] = from
		}
	}
	for word := range words.Of(t.Code) {
		if _, there := at[word]; !there {
			at[word] = 0
		}
	}
	first = len(t.Text)
	for _, term := range q.Terms {
		kind, is := textFields[term.Field]
		if !is || term.Op != query.Is || term.Not {
			continue
		}
		if kind != "" && kind != t.Kind || !slices.ContainsFunc(term.Values, func(value query.Value) bool {
			from, has := find(at, value)
			if has || value.Text == t.Code && t.Code != "" {
				first = min(first, from)
				return true
			}
			return false
		}) {
			return 0, false
		}
	}
	return first, true
}

// find returns where the first of the words of a value is, if all are there.
func find(at map[string]int, value query.Value) (first int, all bool) {
	first = -1
	for i, word := range value.Words {
		from, there := at[word]
		if value.Prefix && i == len(value.Words)-1 {
			for w, f := range at {
				if strings.HasPrefix(w, word) && (!there || f < from) {
					from, there = f, true
				}
			}
		}
		if !there {
			return 0, false
		}
		if first < 0 || from < first {
			first = from
		}
	}
	return max(first, 0), true
}

// places yields the words of a text, each with the byte at which it, or what it is a part of, begins.
func places(text string) iter.Seq2[string, int] {
	return func(yield func(string, int) bool) {
		for at := 0; at < len(text); {
			end := at + strings.IndexFunc(text[at:], divides)
			if end < at {
				end = len(text)
			}
			from := at
			for word := range words.Of(text[at:end]) {
				if i := strings.Index(text[from:end], word); i >= 0 {
					from += i
				}
				if !yield(word, from) {
					return
				}
			}
			_, size := utf8.DecodeRuneInString(text[end:])
			at = end + size
		}
	}
}

// divides reports whether a character is in no word.
func divides(r rune) bool {
	return !unicode.In(r, unicode.L, unicode.M, unicode.Nd)
}

// The length of a snippet, and how much of it comes before the word, in characters.
const (
	snippetLength = 300
	snippetBefore = 80
)

// cutAround returns what a text has around a byte, on one line.
func cutAround(text string, at int) string {
	from := at
	for range snippetBefore {
		_, size := utf8.DecodeLastRuneInString(text[:from])
		from -= size
	}
	end, left := from, snippetLength-2 // for the ellipses
	for end < len(text) && left > 0 {
		_, size := utf8.DecodeRuneInString(text[end:])
		end, left = end+size, left-1
	}
	snippet := strings.Join(strings.Fields(strings.ToValidUTF8(text[from:end], "�")), " ")
	if from > 0 {
		snippet = "…" + snippet
	}
	if end < len(text) {
		snippet += "…"
	}
	return snippet
}
