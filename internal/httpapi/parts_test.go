package httpapi_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

func image(bytes string) string {
	return `{"type":"image","media_type":"image/png","data":"` + base64.StdEncoding.EncodeToString([]byte(bytes)) + `"}`
}

// blobs is the object store of the rig's bus.
func (r *rig) blobs() journal.Blobs { return r.Bus.(journal.Blobs) }

// payload is that of the run's event at a place, from 0.
func (r *rig) payload(id string, at int) events.Payload {
	r.T.Helper()
	e, err := new(events.Codec).Decode(r.Records(id)[at].Body)
	require.NoError(r.T, err)
	return e.Data
}

func TestMessagesMayHoldImages(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		small, large := "\x89PNG small", "\x89PNG"+strings.Repeat("large", 2000)
		a := r.do("POST", "/v1/runs", `{"agent":`+inline+`,"mode":"chat","task":[{"type":"text","text":"What is this?"},`+image(large)+`,`+image(small)+`]}`)
		require.Equal(t, http.StatusCreated, a.status, a.body)
		id := a.text(t, "run_id")
		start := r.payload(id, 0).(*events.Start)
		require.Equal(t, "What is this?", start.Task)
		require.Equal(t, events.Part{Type: "text", Text: "What is this?"}, start.Parts[0])
		require.Nil(t, start.Parts[1].Data, "large data is not in the log")
		ref := *start.Parts[1].Ref
		data, err := r.blobs().Blob(t.Context(), ref)
		require.NoError(t, err)
		require.Equal(t, large, string(data))
		require.Equal(t, small, string(start.Parts[2].Data))

		r.Happens(id, events.Planning, turnDone("A picture."))
		stored, err := json.Marshal(ref)
		require.NoError(t, err)
		message := fmt.Sprintf(`[{"type":"user-message","messageId":"u1","content":[{"type":"file","mediaType":"application/pdf","name":"a.pdf","ref":%s},
			{"type":"image","media_type":"image/webp","url":"https://example.com/b.webp"}]}]`, stored)
		require.JSONEq(t, `{"accepted":1,"n":3}`, r.inputs(id, message).body)
		require.JSONEq(t, `{"accepted":1,"n":3}`, r.inputs(id, message).body, "the same again changes nothing")
		said := r.payload(id, 2).(*events.UserMessage)
		require.Equal(t, "[file a.pdf application/pdf 11 kB]\n[image image/webp https://example.com/b.webp]", said.Content)
		require.Equal(t, ref, *said.Parts[0].Ref)

		r.inputs(id, `[{"type":"user-message","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}]`)
		plain := r.payload(id, 3).(*events.UserMessage)
		require.Equal(t, "one\ntwo", plain.Content)
		require.Nil(t, plain.Parts, "texts alone are text")

		var state struct {
			Memory struct {
				Messages []struct {
					Content string        `json:"content"`
					Parts   []events.Part `json:"parts"`
				} `json:"messages"`
			} `json:"memory"`
		}
		require.NoError(t, json.Unmarshal([]byte(r.do("GET", "/v1/runs/"+id, "").body), &state))
		require.Equal(t, "What is this?", state.Memory.Messages[0].Content)
		require.Equal(t, start.Parts, state.Memory.Messages[0].Parts)
	})
}

func TestPartsThatAreWrong(t *testing.T) {
	t.Parallel()
	r := newRig(t, simtest.New(simtest.Options{}), nil)
	id := r.start("chat")
	unknown := events.Hash([]byte("never stored"))
	for name, c := range map[string]struct {
		content string
		status  int
		code    string
		says    string
	}{
		"no list":        {`{"type":"text"}`, 400, "bad_input", "content: is a mapping, want a string or a list of parts"},
		"empty list":     {`[]`, 400, "bad_input", "content: is empty"},
		"empty text":     {`[{"type":"text","text":""}]`, 400, "bad_input", "content[0]: text: is empty"},
		"text in a list": {`["x"]`, 400, "bad_input", "content[0]: is a string, want a mapping"},
		"no type":        {`[{"text":"x"}]`, 400, "bad_input", "content[0]: type: is missing"},
		"unknown type":   {`[{"type":"text","text":"x"},{"type":"video"}]`, 400, "bad_input", `content[1]: type: "video" is not known`},
		"unknown key":    {`[{"type":"text","text":"x","size":3}]`, 400, "bad_input", `content[0]: "size": unknown key`},
		"a key twice":    {`[{"type":"image","media_type":"image/png","mediaType":"image/png"}]`, 400, "bad_input", "media_type: is given twice"},
		"bad base64":     {`[{"type":"image","media_type":"image/png","data":"%%%"}]`, 400, "bad_input", "content[0]: data: is not base64"},
		"no media type":  {`[{"type":"image","data":"eA=="}]`, 400, "bad_input", "media_type: is missing"},
		"no such image":  {`[{"type":"image","media_type":"image/tiff","data":"eA=="}]`, 400, "bad_input", "image/tiff is no type of image that models take"},
		"no content":     {`[{"type":"image","media_type":"image/png"}]`, 400, "bad_input", "give exactly one"},
		"bad URL":        {`[{"type":"image","media_type":"image/png","url":"a.png"}]`, 400, "bad_input", "absolute http or https URL"},
		"bad ref":        {`[{"type":"image","media_type":"image/png","ref":{"bucket":"results_default"}}]`, 400, "bad_input", "ref: needs bucket, key"},
		"ref of a kind":  {`[{"type":"image","media_type":"image/png","ref":{"size":"3"}}]`, 400, "bad_input", "ref.size"},
		"nothing stored": {
			`[{"type":"image","media_type":"image/png","ref":{"bucket":"results_default","key":"` + unknown + `","sha256":"` + unknown + `","size":3}}]`,
			422, "unknown_ref", "the object store has nothing",
		},
		"too many parts": {`[` + strings.Repeat(image("x")+",", 64) + image("x") + `]`, 400, "bad_input", "at most 64"},
	} {
		t.Run(name, func(t *testing.T) {
			a := r.fails(c.status, c.code, r.inputs(id, `[{"type":"user-message","content":`+c.content+`}]`))
			require.Contains(t, a.text(t, "message"), c.says)
			code := strings.Replace(c.code, "bad_input", "bad_request", 1)
			a = r.fails(c.status, code, r.do("POST", "/v1/runs", `{"agent":`+inline+`,"task":`+c.content+`}`))
			require.Contains(t, a.text(t, "message"), strings.ReplaceAll(c.says, "content", "task"))
		})
	}
	require.Len(t, r.Records(id), 1, "nothing was stored")
	r.fails(413, "too_large", r.inputs(id, `[{"type":"user-message","content":[`+image(strings.Repeat("x", 1<<20))+`]}]`))
}

// Nothing removes what is in the object store for no run, so a request that is refused, or
// repeated to a run that has ended, stores nothing.
func TestRefusedRequestsStoreNoImages(t *testing.T) {
	t.Parallel()
	r := newRig(t, simtest.New(simtest.Options{}), nil)
	stored := func(data string) error {
		key := events.Hash([]byte(data))
		_, err := r.blobs().Blob(t.Context(), events.Ref{Bucket: "results_default", Key: key, SHA256: key, Size: len(data)})
		return err
	}
	picture := func(name string) string { return "\x89PNG" + name + strings.Repeat("large", 2000) }
	id := r.start("chat")
	taken, foreign, early, late := picture("taken"), picture("foreign"), picture("early"), picture("late")
	message := func(data string) string {
		return `{"type":"user-message","messageId":"u","content":[` + image(data) + `]}`
	}
	r.fails(400, "bad_request", r.do("POST", "/v1/runs", `{"task_type":"\ud800","agent":`+inline+`,"task":[`+image(early)+`]}`))
	r.fails(409, "run_exists", r.do("POST", "/v1/runs", `{"run_id":"`+id+`","agent":`+inline+`,"task":[`+image(early)+`]}`))
	r.fails(422, "unknown_call", r.inputs(id, `[`+message(foreign)+`,{"type":"add-tool-calls-to-context","tool_call_ids":["nope"]}]`))
	require.Equal(t, http.StatusOK, r.inputs(id, `[`+message(taken)+`]`).status)
	require.NoError(t, stored(taken))
	r.inputs(id, `[`+message(late)+`]`) // its id is known
	r.do("POST", "/v1/runs/"+id+"/cancel", "")
	r.fails(409, "run_ended", r.inputs(id, `[`+strings.Replace(message(late), `"u"`, `"v"`, 1)+`]`))
	for name, data := range map[string]string{"early": early, "foreign": foreign, "late": late} {
		require.ErrorIs(t, stored(data), journal.ErrNotFound, name)
	}
}
