package events_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

func digest(text string) events.Ref {
	hash := events.Hash([]byte(text))
	return events.Ref{Bucket: "results_default", Key: hash, Size: len(text), SHA256: hash}
}

func TestPartsAreChecked(t *testing.T) {
	ref, odd := digest("x"), digest("x")
	odd.Key = "another"
	png := events.Part{Type: "image", MediaType: "image/png"}
	with := func(p events.Part, change func(*events.Part)) events.Part {
		change(&p)
		return p
	}
	for says, p := range map[string]events.Part{
		"":                                    {Type: "text", Text: "Hi."},
		"type: is missing":                    {Text: "Hi."},
		`type: "video" is not known`:          {Type: "video"},
		"text: is missing":                    {Type: "text"},
		"only the key text":                   {Type: "text", Text: "x", URL: "https://example.com"},
		"text: belongs to":                    with(png, func(p *events.Part) { p.Text, p.Data = "x", []byte("x") }),
		"media_type: is missing":              {Type: "file", Data: []byte("x")},
		`"Image/PNG" is not a media type`:     {Type: "image", MediaType: "Image/PNG", Data: []byte("x")},
		"image/bmp is no type of image":       {Type: "image", MediaType: "image/bmp", Data: []byte("x")},
		"has 0 of data, url and ref":          png,
		"has 2 of data, url and ref":          with(png, func(p *events.Part) { p.Data, p.Ref = []byte("x"), &ref }),
		"data: is empty":                      with(png, func(p *events.Part) { p.Data = []byte{} }),
		"url: is a data URL":                  with(png, func(p *events.Part) { p.URL = "data:image/png;base64,eA==" }),
		"url: must be an absolute":            with(png, func(p *events.Part) { p.URL = "file:///etc/passwd" }),
		"url: is longer":                      with(png, func(p *events.Part) { p.URL = "https://example.com/" + strings.Repeat("x", 5000) }),
		"ref: needs bucket, key":              with(png, func(p *events.Part) { p.Ref = &odd }),
		"name: must be one line":              with(png, func(p *events.Part) { p.Name, p.Data = "a\nb", []byte("x") }),
		"name: must be one line of at most 4": with(png, func(p *events.Part) { p.Name, p.Data = strings.Repeat("x", 5000), []byte("x") }),
	} {
		if err := p.Check(); says == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, says)
		}
	}
	for _, good := range []events.Part{
		with(png, func(p *events.Part) { p.Data = []byte("x") }),
		with(png, func(p *events.Part) { p.URL = "https://example.com/a.png" }),
		with(png, func(p *events.Part) { p.Ref = &ref }),
		{Type: "file", MediaType: "application/pdf", Name: "plan.pdf", Data: []byte("x")},
	} {
		require.NoError(t, good.Check())
	}
}

func TestPartsInWords(t *testing.T) {
	ref := digest(strings.Repeat("x", 11_500))
	image := events.Part{Type: "image", MediaType: "image/png", Ref: &ref}
	file := events.Part{Type: "file", MediaType: "application/pdf", Name: "plan.pdf", Data: []byte("%PDF")}
	mixed := []events.Part{{Type: "text", Text: "What is this?"}, image, {Type: "text", Text: "And this?"}, file}
	require.Equal(t, "What is this?\nAnd this?", events.TextOf(mixed))
	require.Equal(t, "What is this?\n[image image/png 12 kB]\nAnd this?\n[file plan.pdf application/pdf 4 B]", events.Shown("What is this?\nAnd this?", mixed))
	require.Equal(t, "[image image/png 12 kB]", events.TextOf([]events.Part{image}), "a message has a text in any case")
	require.Equal(t, "as it is", events.Shown("as it is", nil))
}

func TestPayloadsReferToTheObjectStore(t *testing.T) {
	a, b := digest("a"), digest("b")
	parts := []events.Part{{Type: "text", Text: "x"}, {Type: "image", MediaType: "image/png", Ref: &a}, {Type: "image", MediaType: "image/png", URL: "https://example.com/a.png"}}
	outcome := events.ToolOutcome{CallID: "c", Ref: &a, Attachments: []events.Attachment{{Ref: b, MediaType: "image/png"}}}
	require.Equal(t, []events.Ref{a}, events.RefsOf(&events.Start{Parts: parts}))
	require.Equal(t, []events.Ref{a}, events.RefsOf(&events.UserMessage{Parts: parts}))
	require.Equal(t, []events.Ref{a, b}, events.RefsOf(&events.ToolCallResult{ToolOutcome: outcome}))
	require.Equal(t, []events.Ref{a, b}, events.RefsOf(&events.ToolSuccess{Outcome: &outcome}))
	require.Equal(t, []events.Ref{b}, events.RefsOf(&events.LLMFinalAnswer{Reply: events.Reply{Facts: events.Facts{ReasoningRef: &b}}}))
	require.Empty(t, events.RefsOf(&events.ToolFailure{}))
}

// Builds that did not record the media type wrote only the reference.
func TestAttachmentsOfOlderBuilds(t *testing.T) {
	var o events.ToolOutcome
	ref := digest("a")
	old, err := json.Marshal(map[string]any{"call_id": "c", "attachments": []events.Ref{ref}})
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(old, &o))
	require.Equal(t, []events.Attachment{{Ref: ref}}, o.Attachments)
	_, shown := o.Attachments[0].Part()
	require.False(t, shown)
	for mediaType, want := range map[string]string{"image/png": events.PartImage, "application/pdf": events.PartFile, "audio/wav": ""} {
		p, shown := (&events.Attachment{Ref: ref, MediaType: mediaType}).Part()
		require.Equal(t, want != "", shown, mediaType)
		if shown {
			require.Equal(t, events.Part{Type: want, MediaType: mediaType, Ref: &ref}, p)
		}
	}
}
