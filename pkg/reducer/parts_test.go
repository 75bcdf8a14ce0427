package reducer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func picture(content string) events.Part {
	hash := events.Hash([]byte(content))
	return events.Part{Type: events.PartImage, MediaType: "image/png", Ref: &events.Ref{Bucket: "results_default", Key: hash, Size: len(content), SHA256: hash}}
}

func words(text string) events.Part { return events.Part{Type: events.PartText, Text: text} }

func TestMessagesWithPartsAreShown(t *testing.T) {
	task := []events.Part{words("find it"), picture("task")}
	s := started(t, chat, func(p *events.Start) { p.Parts = task })
	require.True(t, s.Mem.Control.Stored)
	more := []events.Part{picture("more"), words("And this?")}
	s.do(&events.UserMessage{MessageID: "u", Content: "And this?", Parts: more})
	view := reducer.View(nil, s.Mem)
	require.Equal(t, reducer.ViewMessage{Role: "user", Content: "find it", Parts: task}, view[1])
	require.Equal(t, reducer.ViewMessage{Role: "user", Content: "And this?", Parts: more}, view[2])
	require.Equal(t, []any{"find it", task}, []any{s.Mem.Messages[0].Content, s.Mem.Messages[0].Parts})
	require.Equal(t, "And this?", s.Mem.Messages[1].Content)
	require.Equal(t, reducertest.Canonical(s.Fold()), reducertest.Canonical(s.Mem), "it is read as it was written")
	trace := s.Mem.Trace[len(s.Mem.Trace)-1]
	require.Equal(t, "[image image/png 4 B] And this?", trace.Data)
}

func TestResultsWithAttachmentsAreShown(t *testing.T) {
	image, sound := picture("chart"), picture("sound")
	result := success("a", "[image image/png, 5 bytes, kept as x]")
	result.Outcome.Attachments = []events.Attachment{{Ref: *sound.Ref, MediaType: "audio/wav"}, {Ref: *image.Ref, MediaType: "image/png"}}
	s := started(t)
	require.False(t, s.Mem.Control.Stored)
	s.do(single("a", "alpha"), result, &events.Continue{})
	require.True(t, s.Mem.Control.Stored)
	view := reducer.View(nil, s.Mem)
	shown := view[len(view)-1]
	require.Equal(t, "[image image/png, 5 bytes, kept as x]", shown.Content)
	require.Equal(t, []events.Part{words(shown.Content), image}, shown.Parts, "models take no sounds; the text says that there is one")
	require.Equal(t, reducertest.Canonical(s.Fold()), reducertest.Canonical(s.Mem))
}

func TestAForksTaskKeepsItsImages(t *testing.T) {
	r := reducertest.NewRun(nil)
	start := reducertest.StartOf("count", events.ModeTask)
	start.Parts = []events.Part{words("count"), picture("task"), words("them")}
	_, _, err := r.Append(events.Idle, start)
	require.NoError(t, err)
	f, err := r.Fork(1, events.Forked{Task: "recount"})
	require.NoError(t, err)
	want := []events.Part{words("recount"), picture("task")}
	require.Equal(t, want, reducer.View(nil, f.Mem)[1].Parts)
	require.Equal(t, want, f.Mem.Messages[0].Parts)
	require.Equal(t, start.Parts, r.Fold().Messages[0].Parts, "the parent keeps its own")
}
