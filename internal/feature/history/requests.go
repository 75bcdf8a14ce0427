package history

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/feature/history/row"
	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/internal/history/query"
	"github.com/moorebus/moorebus/internal/history/store"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
)

// The limits of answers.
const (
	defaultHits   = 50
	maxHits       = 200
	defaultFacets = 100
	maxFacets     = 1000
)

// BehindHeader is the header of an answer that lacks events: how many, or unknown.
const BehindHeader = "Moorebus-Behind"

// Behind is what an answer lacks of the log; empty: nothing.
type Behind struct {
	Behind string `json:"-"`
}

// SetHeader sets the header.
func (b Behind) SetHeader(h http.Header) {
	if b.Behind != "" {
		h.Set(BehindHeader, b.Behind)
	}
}

// ReadHeader reads what SetHeader set.
func (b *Behind) ReadHeader(h http.Header) { b.Behind = h.Get(BehindHeader) }

// The inputs and answers of the requests.
type (
	// Texts says which texts are searched.
	Texts struct {
		requests.Scope
		Query  string `query:"query" doc:"Words of the text, and terms that choose runs, such as agent:billing."`
		Limit  int    `query:"limit" doc:"The most hits of the answer, 1 to 200. Default: 50. There may be fewer although more follow."`
		Cursor string `query:"cursor" doc:"The next of the previous answer."`
	}
	// Hits is a page of texts that were found.
	Hits struct {
		Behind
		Hits []Hit  `json:"hits"`
		Next string `json:"next,omitempty" jsonschema:"The cursor of the next page; none: there are no more."`
	}
	// Hit is a text that was found.
	Hit struct {
		Run     string       `json:"run"`
		N       uint64       `json:"n" jsonschema:"The number of the event that has the text."`
		Kind    history.Kind `json:"kind" jsonschema:"task, message, call, result, answer, error or reasoning."`
		Snippet string       `json:"snippet" jsonschema:"At most 300 characters of the text, around the first word that was found."`
		At      time.Time    `json:"at"`
	}
	// Counted says which runs are counted, by what.
	Counted struct {
		requests.Scope
		Query string `query:"query" doc:"The query that chooses the runs. Default: all runs."`
		By    string `query:"by" doc:"state, agent, model, tool, error, experiment, label.KEY, or hour or day of the start."`
		Limit int    `query:"limit" doc:"The most rows of the answer, 1 to 1000. Default: 100."`
	}
	// FacetRows are counts of runs.
	FacetRows struct {
		Behind
		Rows  []Facet `json:"rows" jsonschema:"Those with the most runs first; hours and days, the newest first."`
		Other *Facet  `json:"other,omitempty" jsonschema:"The keys beyond the limit together."`
		Total Facet   `json:"total" jsonschema:"All runs of the query, each once."`
	}
	// Facet is what runs with a key used.
	Facet struct {
		Key        string    `json:"key,omitempty"`
		Runs       int64     `json:"runs"`
		Tokens     int64     `json:"tokens"`
		CostUSD    float64   `json:"cost_usd"`
		DurationMS Durations `json:"duration_ms"`
	}
	// Durations are how long ended runs took; null: none has ended.
	Durations struct {
		P50 *int64 `json:"p50"`
		P95 *int64 `json:"p95"`
	}
)

var queryCodes = []string{refusal.CodeBadNamespace, row.CodeBadQuery}

// The requests.
var (
	Search = route.Define(route.Route{
		Pattern: "GET /v1/search", Summary: "Finds texts of runs: tasks, messages, calls, results, answers, errors and reasoning, newest first.", Codes: queryCodes,
	}, func(ctx context.Context, v *views, in Texts) (Hits, error) { return v.search(ctx, in) })
	Facets = route.Define(route.Route{
		Pattern: "GET /v1/facets", Summary: "Counts the runs of a query by one of their fields, with tokens, cost and duration.", Codes: queryCodes,
	}, func(ctx context.Context, v *views, in Counted) (FacetRows, error) { return v.facets(ctx, in) })
)

func (v *views) facets(ctx context.Context, in Counted) (out FacetRows, err error) {
	which, err := v.which(ctx, in.Namespace, in.Query, v.c.Store.Now())
	if err != nil {
		return out, err
	}
	limit, err := bound(in.Limit, defaultFacets, maxFacets)
	if err != nil {
		return out, err
	}
	if !countable(in.By) {
		return out, route.BadParameter("by: %.100q is not state, agent, model, tool, error, experiment, label.KEY, hour or day", in.By)
	}
	out.Rows = []Facet{}
	out.Behind.Behind, err = v.use(ctx, func(s *store.Store) error {
		found, err := s.Facets(ctx, which, in.By, limit)
		if err != nil {
			return failed(err)
		}
		for _, f := range found.Rows {
			out.Rows = append(out.Rows, facet(f))
		}
		if out.Total = facet(found.Total); found.Other != nil {
			other := facet(*found.Other)
			out.Other = &other
		}
		return nil
	})
	return out, err
}

func countable(by string) bool {
	if key, is := strings.CutPrefix(by, "label."); is {
		return key != ""
	}
	return slices.Contains([]string{"state", "agent", "model", "tool", "error", "experiment", "hour", "day"}, by)
}

func facet(f store.Facet) Facet {
	ms := func(d *time.Duration) *int64 {
		if d == nil {
			return nil
		}
		n := d.Milliseconds()
		return &n
	}
	return Facet{f.Key, f.Runs, f.Tokens, f.CostUSD, Durations{ms(f.P50), ms(f.P95)}}
}

// which reads a query. Times such as 24h are before now.
func (v *views) which(ctx context.Context, ns, text string, now time.Time) (store.Select, error) {
	ns, err := v.c.CheckNamespace(ns)
	if err != nil {
		return store.Select{}, err
	}
	q, err := query.Parse(text, now)
	var bad *query.BadError
	if errors.As(err, &bad) {
		return store.Select{}, refusal.Wrap(err, refusal.Invalid, row.CodeBadQuery, "query: %s", bad.Error()).
			With(map[string]any{"position": bad.At, "fields": bad.Fields})
	} else if err != nil {
		return store.Select{}, err
	}
	which := store.Select{Namespace: ns, Query: q}
	if q.Asks(query.Waiting) {
		which.Unserved = v.unserved(ctx)
	}
	return which, nil
}

func bound(limit, usual, most int) (int, error) {
	if limit == 0 {
		return usual, nil
	}
	if limit < 0 || limit > most {
		return 0, route.BadParameter("limit: must be 1 to %d", most)
	}
	return limit, nil
}

// place is where a page of hits ends. First is the time of the first page.
type place struct {
	First time.Time `json:"t"`
	At    time.Time `json:"at"`
	ID    int64     `json:"id"`
}

func (p place) String() string {
	data, err := json.Marshal(p)
	if err != nil {
		panic(err) // times of events are those of RFC 3339
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

func parsePlace(text string) (p place, err error) {
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(data, &p)
	}
	if err != nil || p.First.IsZero() {
		return p, route.BadParameter("cursor: %.100q is not one of this list", text)
	}
	return p, nil
}
