package openai

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/llm"
)

// A reply that the content filter stopped is billed all the same.
func TestStoppedReplyIsBilled(t *testing.T) {
	usage := `"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":3}}`
	plain := strings.TrimSuffix(plainReply(`"content":"half"`, "content_filter"), "}") + "," + usage + "}"
	last := `{"model":"m-1","choices":[],` + usage + `}`
	c := serve(t, script(t, events(delta(`"content":"half"`, "content_filter"), last, done), plain))
	for _, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
		_, err := c.Call(t.Context(), request(), stream)
		require.Equal(t, &llm.Usage{Input: 7, Output: 2, Cached: 3, Total: 9}, wantError(t, err, llm.KindInvalid).Usage)
	}
	silent := serve(t, script(t, "", plainReply(`"content":"half"`, "content_filter")))
	_, err := silent.Call(t.Context(), request(), nil)
	require.Nil(t, wantError(t, err, llm.KindInvalid).Usage, "nobody said what it used")
}

func TestDefaultModel(t *testing.T) {
	c := serveWith(t, Options{Model: "m-0"}, nil)
	require.Equal(t, "m-0", c.DefaultModel())
}
