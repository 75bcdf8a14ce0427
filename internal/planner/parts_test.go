package planner_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

// shelf is an object store. A nil value stands for data that cannot be read now.
type shelf map[string][]byte

func (s shelf) PutBlob(_ context.Context, pool string, data []byte) (events.Ref, error) {
	hash := events.Hash(data)
	s[hash] = data
	return events.Ref{Bucket: "results_" + pool, Key: hash, Size: len(data), SHA256: hash}, nil
}

func (s shelf) Blob(_ context.Context, ref events.Ref) ([]byte, error) {
	data, known := s[ref.Key]
	switch {
	case !known:
		return nil, journal.ErrNotFound
	case data == nil:
		return nil, errors.New("the store is away")
	}
	return data, nil
}

// image puts an image into the store.
func (s shelf) image(t *testing.T, data string) events.Part {
	t.Helper()
	ref, err := s.PutBlob(t.Context(), "default", []byte(data))
	require.NoError(t, err)
	return events.Part{Type: events.PartImage, MediaType: "image/png", Ref: &ref}
}

func withParts(parts ...events.Part) func(*events.Start) {
	return func(s *events.Start) { s.Task, s.Parts = events.TextOf(parts), parts }
}

// seen runs a test with a planner that reads from the store, and a model that gives these
// replies.
func seen(t *testing.T, store journal.Blobs, test func(t *testing.T, r *rig), replies ...any) {
	t.Helper()
	mock := scripted.NewMock(replies...)
	bubbleWith(t, mock, func(t *testing.T, r *rig) {
		r.mock = mock
		test(t, r)
	}, func(c *planner.Config) { c.Blobs = store })
}

func text(s string) events.Part { return events.Part{Type: events.PartText, Text: s} }

func TestTheModelIsShownImages(t *testing.T) {
	store := shelf{}
	large, chart := store.image(t, "large"), store.image(t, "chart")
	small := events.Part{Type: events.PartFile, MediaType: "application/pdf", Name: "a.pdf", Data: []byte("%PDF")}
	linked := events.Part{Type: events.PartImage, MediaType: "image/png", URL: "https://example.com/a.png"}
	seen(t, store, func(t *testing.T, r *rig) {
		run := r.begin(withParts(text("What is this?"), large, small, linked))
		mem := r.AwaitState(run, events.Acting)
		r.Append(run, events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{
			CallID: mem.CurrentToolCall.ID, Success: true, Observation: "SUCCESS: drawn", Code: "ok",
			Attachments: []events.Attachment{{Ref: *chart.Ref, MediaType: "image/png"}},
		}})
		r.Append(run, events.Observing, &events.Continue{})
		r.AwaitEnd(run)
		requests := r.mock.Requests()
		require.Len(t, requests, 2)
		task := llm.Message{Role: llm.RoleUser, Content: "What is this?", Parts: []events.Part{
			{Type: events.PartText, Text: "What is this?"},
			{Type: events.PartImage, MediaType: "image/png", Data: []byte("large")},
			{Type: events.PartFile, MediaType: "application/pdf", Name: "a.pdf", Data: []byte("%PDF")},
			{Type: events.PartImage, MediaType: "image/png", URL: "https://example.com/a.png"},
		}}
		require.Equal(t, task, requests[0].Messages[1])
		require.Equal(t, task, requests[1].Messages[1], "each request has them")
		require.Equal(t, []events.Part{
			{Type: events.PartText, Text: "drawn"}, {Type: events.PartImage, MediaType: "image/png", Data: []byte("chart")},
		}, requests[1].Messages[3].Parts)
	}, ask(call("c", "alpha", "{}")), say("It is a chart."))
}

func TestWhatIsNotStoredAnyMoreIsLeftOut(t *testing.T) {
	store := shelf{}
	gone := store.image(t, strings.Repeat("x", 11_500))
	clear(store)
	seen(t, store, func(t *testing.T, r *rig) {
		require.Equal(t, events.Done, r.AwaitEnd(r.begin(withParts(text("What is this?"), gone))).State)
		require.Equal(t, []events.Part{
			{Type: events.PartText, Text: "What is this?"},
			{Type: events.PartText, Text: "[image image/png 12 kB: left out, since it is not stored any more]"},
		}, r.mock.Requests()[0].Messages[1].Parts)
	}, say("I cannot see it."))
}

func TestARequestHasRoomForTheLatestImages(t *testing.T) {
	store := shelf{}
	old, other, last := store.image(t, strings.Repeat("a", 12<<20)), store.image(t, strings.Repeat("b", 9<<20)), store.image(t, "last")
	seen(t, store, func(t *testing.T, r *rig) {
		r.AwaitEnd(r.begin(withParts(old, other, last)))
		parts := r.mock.Requests()[0].Messages[1].Parts
		require.Equal(t, "[image image/png 12.6 MB: left out, since a request has room for 21.0 MB of them, and the latest come first]", parts[0].Text)
		require.Len(t, parts[1].Data, 9<<20)
		require.Equal(t, "last", string(parts[2].Data))
	}, say("I see two."))
}

// A store that is away is an outage, waited for like one of the provider, and no reason to
// leave an image out.
func TestAStoreThatIsAway(t *testing.T) {
	store := shelf{}
	image := store.image(t, "x")
	store[image.Ref.Key] = nil
	seen(t, store, func(t *testing.T, r *rig) {
		run := r.begin(withParts(image))
		mem := r.AwaitType(run, events.TypeLLMAttemptFailed)
		failed := r.Events(run)[mem.N-1].Data.(*events.LLMAttemptFailed)
		require.Equal(t, string(llm.KindNetwork), failed.Kind, "it has the attempts of a call")
		require.Equal(t, "the object store: image image/png 1 B: the store is away", failed.Message)
		require.Zero(t, r.mock.CallCount())
	}, say("never asked"))
}

// An image counts by a rule and not by its length.
func TestImagesInEstimates(t *testing.T) {
	store := shelf{}
	image := store.image(t, strings.Repeat("x", 1<<20))
	budget := func(tokens int) func(*events.Start) {
		return func(s *events.Start) { s.Agent.Budget = &events.Budget{MaxInputTokens: tokens} }
	}
	seen(t, store, func(t *testing.T, r *rig) {
		require.Equal(t, events.Done, r.AwaitEnd(r.begin(budget(2000), withParts(image))).State)
		mem := r.AwaitEnd(r.begin(budget(2000), withParts(image, image)))
		require.Equal(t, "budget_input_tokens", mem.Error.Code)
		require.Equal(t, 1, r.mock.CallCount())
	}, say("I see it."))
}
