package httpapi

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

func (s *Server) getStorages(ctx context.Context, r *route.Request) (any, error) {
	if _, err := route.Parameters(r.Request); err != nil {
		return nil, err
	}
	agents, err := s.control.Storages(ctx, r.Namespace())
	return storages{agents}, err
}

// storages is the answer to GET /v1/storage.
type storages struct {
	Agents []string `json:"agents"`
}

// foundEntries is the answer to a search of storage. Total counts all that match, returned or not.
type foundEntries struct {
	Entries []events.Entry `json:"entries"`
	Total   int            `json:"total"`
}

func (s *Server) getStorage(ctx context.Context, r *route.Request) (any, error) {
	values, err := route.Parameters(r.Request, "tags", "q", "exact", "limit")
	if err != nil {
		return nil, err
	}
	tags := splitTags(values["tags"])
	switch exact, given := values["exact"]; {
	case given && exact != "true" && exact != "false":
		return nil, route.BadParameter("exact: %.100q is neither true nor false", exact)
	case exact == "true":
		e, err := s.control.StoredEntry(ctx, r.Namespace(), r.PathValue("name"), tags)
		if err != nil {
			return nil, err
		}
		return foundEntries{[]events.Entry{e}, 1}, nil
	}
	limit, err := route.Number(values, "limit", control.MaxEntries)
	if err != nil {
		return nil, err
	}
	all, err := s.control.Stored(ctx, r.Namespace(), r.PathValue("name"), journal.StorageQuery{
		Tags: tags, Value: values["q"], Limit: int(min(limit, control.MaxEntries+1)),
	})
	return foundEntries(all), err
}

func (s *Server) putStorage(ctx context.Context, r *route.Request) (any, error) {
	var body entryBody
	if err := r.Object(&body); err != nil {
		return nil, err
	}
	tags, err := body.tags()
	if err != nil {
		return nil, err
	}
	return s.control.SaveStored(ctx, r.Namespace(), r.PathValue("name"), events.Entry{Tags: tags, Value: body.Value})
}

// entryBody is an entry to be stored. Tags are a list, or a text with commas.
type entryBody struct {
	Tags  json.RawMessage `json:"tags" jsonschema:"A list of tags, or a text with commas between them."`
	Value string          `json:"value" jsonschema:"The text to keep, at most 64 KiB as JSON text."`
}

func (b *entryBody) tags() ([]string, error) {
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

// deleted is the answer to the removal of an entry.
type deleted = requests.Deleted

func (s *Server) deleteStorage(ctx context.Context, r *route.Request) (any, error) {
	values, err := route.Parameters(r.Request, "tags")
	if err != nil {
		return nil, err
	}
	err = s.control.DeleteStored(ctx, r.Namespace(), r.PathValue("name"), splitTags(values["tags"]))
	return deleted{Deleted: err == nil}, err
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
