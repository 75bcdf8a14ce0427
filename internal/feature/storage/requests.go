package storage

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// storageCodes are of requests about an agent's storage.
var storageCodes = []string{refusal.CodeBadAgent, entrystore.CodeBadEntry, entrystore.CodeEntryNotFound}

// The inputs and answers of requests about storage.
type (
	// Storages has the agents of a namespace that have storage.
	Storages struct {
		Agents []string `json:"agents"`
	}
	// EntryQuery selects entries of an agent's storage.
	EntryQuery struct {
		requests.Named
		Tags  string `query:"tags" doc:"Only entries that have all of these tags, separated by commas."`
		Text  string `query:"q" doc:"Only entries whose value has this text. Case does not matter."`
		Exact bool   `query:"exact" doc:"true: only the entry with exactly these tags."`
		Limit int    `query:"limit" doc:"The most entries of the answer, 1 to 1000. Default: 1000."`
	}
	// EntryName names an entry.
	EntryName struct {
		requests.Named
		Tags string `query:"tags" doc:"The entry's tags, separated by commas."`
	}
	// NewEntry is an entry of an agent's storage.
	NewEntry struct {
		requests.Named
		Entry EntryBody `body:""`
	}
	// FoundEntries has entries. Total counts all that match, returned or not.
	FoundEntries struct {
		Entries []events.Entry `json:"entries"`
		Total   int            `json:"total"`
	}
	// EntryBody is an entry to be stored.
	EntryBody struct {
		Tags  json.RawMessage `json:"tags" jsonschema:"A list of tags, or a text with commas between them."`
		Value string          `json:"value" jsonschema:"The text to keep, at most 64 KiB as JSON text."`
	}
)

// The requests about storage.
var (
	ListStorages = route.Define(route.Route{
		Pattern: "GET /v1/storage", Summary: "Lists the agents that have storage.",
	}, func(ctx context.Context, s *Storage, in requests.Scope) (Storages, error) {
		agents, err := s.agents(ctx, in.Namespace)
		return Storages{agents}, err
	})
	FindStored = route.Define(route.Route{
		Pattern: "GET /v1/agents/{name}/storage", Summary: "Finds entries of an agent's storage, those with the fewest tags first.", Codes: storageCodes,
	}, func(ctx context.Context, s *Storage, in EntryQuery) (FoundEntries, error) {
		tags := splitTags(in.Tags)
		if in.Exact {
			e, err := s.get(ctx, in.Namespace, in.Name, tags)
			return FoundEntries{[]events.Entry{e}, 1}, err
		}
		all, err := s.find(ctx, in.Namespace, in.Name, entrystore.Query{Tags: tags, Value: in.Text, Limit: in.Limit})
		return FoundEntries(all), err
	})
	PutStored = route.Define(route.Route{
		Pattern: "PUT /v1/agents/{name}/storage", Summary: "Stores or replaces the value under a set of tags.",
		Codes: storageCodes, Example: `{"tags": ["plan", "today"], "value": "Read on"}`,
	}, func(ctx context.Context, s *Storage, in NewEntry) (events.Entry, error) {
		tags, err := in.Entry.tags()
		if err != nil {
			return events.Entry{}, err
		}
		return s.put(ctx, in.Namespace, in.Name, events.Entry{Tags: tags, Value: in.Entry.Value})
	})
	DeleteStored = route.Define(route.Route{
		Pattern: "DELETE /v1/agents/{name}/storage", Summary: "Removes the entry with exactly these tags.", Codes: storageCodes,
	}, func(ctx context.Context, s *Storage, in EntryName) (requests.Deleted, error) {
		return requests.Deleted{Deleted: true}, s.remove(ctx, in.Namespace, in.Name, splitTags(in.Tags))
	})
)

// rows returns the requests about storage.
func (s *Storage) rows() []route.Route {
	return []route.Route{ListStorages.Row(s), FindStored.Row(s), PutStored.Row(s), DeleteStored.Row(s)}
}

// Put stores an entry of an agent, in the place of one with the same tags, and returns it as it is stored.
func Put(ctx context.Context, api route.Client, agent string, e events.Entry) (events.Entry, error) {
	tags, _ := json.Marshal(e.Tags) // texts are JSON
	return PutStored.Call(ctx, api, NewEntry{Named: requests.Name(agent), Entry: EntryBody{tags, e.Value}})
}

func (b *EntryBody) tags() ([]string, error) {
	var text string
	if json.Unmarshal(b.Tags, &text) == nil {
		return splitTags(text), nil
	}
	var tags []string
	if len(b.Tags) > 0 && json.Unmarshal(b.Tags, &tags) != nil {
		return nil, route.BadRequest("tags: must be a list of texts, or a text with commas between the tags")
	}
	for _, tag := range tags {
		if strings.Contains(tag, ",") {
			return nil, route.BadRequest("tags: %.100q has a comma, which separates tags", tag)
		}
	}
	return tags, nil
}

// splitTags reads tags with commas between them.
func splitTags(text string) []string {
	var tags []string
	for tag := range strings.SplitSeq(text, ",") {
		if tag = strings.TrimSpace(tag); tag != "" {
			tags = append(tags, tag)
		}
	}
	return tags
}
