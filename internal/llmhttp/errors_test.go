package llmhttp

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/llm"
)

// said is an error as the APIs state it.
func said(kind, code, message string) string {
	return fmt.Sprintf(`{"type":"error","error":{"message":%q,"type":%q,"param":null,"code":%q}}`, message, kind, code)
}

func TestErrorsByStatus(t *testing.T) {
	const both = ""
	for _, tt := range []struct {
		provider string
		status   int
		body     string
		kind     llm.ErrorKind
		want     string
	}{
		{both, 400, said("invalid_request_error", "bad", "its words, key "+testKey), llm.KindInvalid, "its words, key [API key]"},
		{both, 401, said("authentication_error", "invalid_api_key", "its words"), llm.KindAuth, "its words"},
		{both, 402, said("billing_error", "", "its words"), llm.KindInvalid, "no credit left"},
		{both, 403, said("permission_error", "", "its words"), llm.KindAuth, "its words"},
		{both, 404, said("not_found_error", "model_not_found", "its words"), llm.KindInvalid, "its words"},
		{both, 408, "", llm.KindOverloaded, "HTTP 408 Request Timeout"},
		{both, 409, "", llm.KindOverloaded, "HTTP 409"},
		{both, 413, said("request_too_large", "", "its words"), llm.KindContextTooLong, "its words"},
		{both, 413, "<html>too large</html>", llm.KindContextTooLong, "HTTP 413"},
		{both, 429, said("rate_limit_error", "rate_limit_exceeded", "its words"), llm.KindRateLimited, "its words"},
		{both, 498, "", llm.KindOverloaded, "HTTP 498"},
		{both, 500, said("api_error", "", "its words"), llm.KindOverloaded, "its words"},
		{both, 500, strings.Repeat("ü", 9000), llm.KindOverloaded, "ü…"},
		{both, 501, "", llm.KindInvalid, "HTTP 501"},
		{both, 502, "<html>Bad Gateway</html>", llm.KindOverloaded, "HTTP 502 Bad Gateway: <html>"},
		{both, 503, "", llm.KindOverloaded, "HTTP 503"},
		{both, 504, said("timeout_error", "", "its words"), llm.KindOverloaded, "its words"},
		{both, 529, said("overloaded_error", "", "its words"), llm.KindOverloaded, "its words"},
		{both, 529, "", llm.KindOverloaded, "HTTP 529"},
		{both, 404, `{"error":"model \"x\" not found, try pulling it first"}`, llm.KindInvalid, `model "x" not found`},
		{both, 422, `{"detail":"field required"}`, llm.KindInvalid, "field required"},
		{both, 422, `{"detail":[{"msg":"field required"}]}`, llm.KindInvalid, "HTTP 422 Unprocessable Entity: {"},
		{both, 400, `{"error":{"message":["one","two"]}}`, llm.KindInvalid, "one, two"},

		{providers.OpenAI, 401, said("invalid_request_error", "invalid_api_key", "its words"), llm.KindAuth, "its words"},
		{providers.OpenAI, 429, said("insufficient_quota", "insufficient_quota", "its words"), llm.KindInvalid, "no credit left"},
		{providers.OpenAI, 400, said("invalid_request_error", "context_length_exceeded", "its words"), llm.KindContextTooLong, "its words"},
		{providers.OpenAI, 400, `{"error":{"message":"m","type":"exceed_context_size_error","code":400}}`, llm.KindContextTooLong, "m"},
		{providers.OpenAI, 400, `{"object":"error","message":"This model's maximum context length is 4096 tokens","type":"BadRequestError","code":400}`,
			llm.KindContextTooLong, "maximum context length"},
		{providers.OpenAI, 500, said("invalid_request_error", "", "its words"), llm.KindOverloaded, "its words"},

		{providers.Anthropic, 400, said("invalid_request_error", "", "prompt is too long: 210000 tokens > 200000 maximum"), llm.KindContextTooLong, "too long"},
		{providers.Anthropic, 400, said("invalid_request_error", "", "input length and `max_tokens` exceed context limit: 1 + 2 > 2"), llm.KindContextTooLong, "exceed"},
		{providers.Anthropic, 400, said("invalid_request_error", "", "Your credit balance is too low to access the API."), llm.KindInvalid, "no credit left"},
		{providers.Anthropic, 400, said("overloaded_error", "", "its words"), llm.KindOverloaded, "its words"},
	} {
		for _, name := range []string{providers.OpenAI, providers.Anthropic} {
			if tt.provider != both && tt.provider != name {
				continue
			}
			t.Run(fmt.Sprintf("%s %d %.20s", name, tt.status, tt.body), func(t *testing.T) {
				server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
					w.WriteHeader(tt.status)
					_, _ = io.WriteString(w, tt.body)
				}, Options{})
				c := open(t, name, Options{APIKey: testKey, BaseURL: server.BaseURL()})
				for _, streamed := range []bool{false, true} {
					_, err := call(t.Context(), c, streamed)
					e := wantError(t, err, tt.kind)
					require.Contains(t, e.Message, tt.want)
					require.Equal(t, tt.status, e.Status)
					require.Zero(t, e.RetryAfter)
					require.LessOrEqual(t, len(e.Message), maxMessage+len("…"))
				}
			})
		}
	}
}

// What is stated in the middle of a stream is sorted by its words, or by a status
// that stands as its code.
func TestErrorsInTheStream(t *testing.T) {
	for text, want := range map[string]llm.ErrorKind{
		`{"message":"words","type":"overloaded_error"}`:         llm.KindOverloaded,
		`{"message":"words","type":"server_error","code":null}`: llm.KindOverloaded,
		`{"message":"words","code":502}`:                        llm.KindOverloaded,
		`{"message":"words","code":429}`:                        llm.KindRateLimited,
		`{"message":"words","code":"rate_limit_exceeded"}`:      llm.KindRateLimited,
		`{"message":"words","code":"context_length_exceeded"}`:  llm.KindContextTooLong,
		`{"message":"words","type":"authentication_error"}`:     llm.KindAuth,
		`{"message":"words","type":"invalid_request_error"}`:    llm.KindInvalid,
		`{"message":"words","type":"some_later_error"}`:         llm.KindOther,
	} {
		_, err := call(t.Context(), serve(t, script("data: \"half\"\n\n: ping\n\ndata: {\"id\":\"x\",\"error\":"+text+"}\n\n"), Options{}), true)
		require.Equal(t, "words", wantError(t, err, want).Message)
	}
}

func TestSecretIsKept(t *testing.T) {
	key := secret(testKey)
	require.Equal(t, "bad key [API key], and \uFFFD", key.clean("bad key "+testKey+", and \xff"))
	require.Nil(t, key.harmless(errors.New("POST https://x:"+testKey+"@y")))
	require.Error(t, key.harmless(errors.New("refused")))
	require.Equal(t, "none is set", secret("none").clean("none is set"), "a placeholder is an ordinary word")
}

func TestRetryAfter(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
	}, Options{})
	for _, streamed := range []bool{false, true} {
		_, err := call(t.Context(), c, streamed)
		require.Equal(t, 7*time.Second, wantError(t, err, llm.KindRateLimited).RetryAfter)
	}
}
