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
		{both, 400, said("invalid_request_error", "bad", "its words, key "+testKey), llm.KindInvalid, "its words, key [secret]"},
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

		{both, 400, `[{"error":{"code":400,"message":"its words","status":"INVALID_ARGUMENT"}}]`, llm.KindInvalid, "its words"},
		{both, 400, `{"error":{"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT"}}`, llm.KindAuth, "not valid"},
		{both, 400, `{"code":"Client specified an invalid argument","error":"Incorrect API key provided: x"}`, llm.KindAuth, "Incorrect"},
		{both, 429, `{"error":{"code":"1113","message":"Insufficient balance"}}`, llm.KindInvalid, "no credit left"},
		{both, 403, `{"error":"Your newly created team doesn't have any credits yet."}`, llm.KindInvalid, "no credit left"},
		{both, 403, `{"error":{"code":403,"message":"flagged","metadata":{"reasons":["hate"]}}}`, llm.KindInvalid, "flagged (hate)"},
		{both, 403, `{"error":"Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE"}`, llm.KindInvalid, "violates"},
		{both, 400, `{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"upstream says no"}}}`, llm.KindInvalid, "error: upstream says no"},
		{both, 400, `{"error":{"message":"words","code":"tool_use_failed","failed_generation":"<f>"}}`, llm.KindToolUse, "words; failed_generation: <f>"},
		{both, 500, `{"error":{"message":"error parsing tool call: raw='{', err=unexpected end"}}`, llm.KindToolUse, "raw='{'"},
		{both, 500, `{"error":{"message":"invalid JSON schema in format","type":"api_error"}}`, llm.KindSchemaRefused, "in format"},
		{both, 400, `{"error":{"message":"JSON schema conversion failed:\nUnrecognized schema","code":400}}`, llm.KindSchemaRefused, "Unrecognized"},
		{both, 400, `{"error":{"message":"Grammar error: Unimplemented keys: [\"patternProperties\"]","code":400}}`, llm.KindSchemaRefused, "Grammar"},
		{both, 500, `{"error":{"message":"The provided JSON schema contains features not supported by xgrammar."}}`, llm.KindSchemaRefused, "xgrammar"},
		{both, 400, `{"error":{"message":"failed to parse grammar","type":"invalid_request_error"}}`, llm.KindSchemaRefused, "grammar"},
		{both, 400, `{"error":{"message":"Invalid schema for response_format 'answer'","param":"response_format"}}`, llm.KindSchemaRefused, "answer"},
		{both, 400, `{"error":{"message":"Invalid schema for function 'f'","code":"invalid_function_parameters"}}`, llm.KindSchemaRefused, "'f'"},
		{both, 400, `{"type":"error","error":{"type":"invalid_request_error","message":"tools.0.custom.input_schema: JSON schema is invalid."}}`, llm.KindSchemaRefused, "tools.0"},

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

// Prompts that are too long, in the words of servers that have no code for it.
func TestTooLongInWords(t *testing.T) {
	for _, words := range []string{
		"This model's maximum prompt length is 131072 but the request contains 537812 tokens.",    // xAI
		"The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).", // Gemini
		"the request exceeds the available context size. try increasing the context size",         // llama.cpp
		"the input length exceeds the context length",                                             // Ollama
		"prompt too long; exceeded max context length by 5 tokens",                                // Ollama
		"The number of tokens to keep from the initial prompt is greater than the context length", // LM Studio
		"Invalid request: Your request exceeded model token limit: 262144 (requested: 300000)",    // Moonshot
		"Prompt exceeds max length",                                                                              // z.ai
		"invalid params, context window exceeds limit (2013)",                                                    // MiniMax
		"Your input exceeds the context window of this model. Please adjust your input and try again.",           // OpenAI
		"Input is too long for requested model.",                                                                 // Bedrock
		"Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",     // Cerebras
		"`inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000 `inputs` tokens",                        // Together
		"Range of input length should be [1, 129024]",                                                            // DashScope
		"Prompt contains 65673 tokens and 0 draft tokens, too large for model with 32768 maximum context length", // Mistral
	} {
		require.Equal(t, llm.KindContextTooLong, read(fmt.Appendf(nil, `{"error":{"message":%q}}`, words), 400).sort(false), words)
		require.NotEqual(t, llm.KindContextTooLong, read(fmt.Appendf(nil, `{"error":{"message":%q}}`, words), 429).sort(false), words)
	}
}

// Waits that stand in the body alone.
func TestWaitsInWords(t *testing.T) {
	for words, want := range map[string]time.Duration{
		"Please try again in 7.5s. Visit":                      7500 * time.Millisecond,
		"Please try again in 1m26.4s.":                         86400 * time.Millisecond,
		"try again in 347ms":                                   347 * time.Millisecond,
		"Please retry after 26 seconds.":                       26 * time.Second,
		"Retry in 2 minutes":                                   2 * time.Minute,
		"Please try again in 1 hour 5 min":                     65 * time.Minute,
		"try again in 6 milliseconds":                          6 * time.Millisecond,
		"try again later":                                      0,
		"try again in 99999999999999999999 s":                  0,
		"the details are {\"retryDelay\": \"12.5s\"}, as JSON": 12500 * time.Millisecond,
		"nothing": 0,
	} {
		require.Equal(t, want, problem{body: []byte(words)}.wait(), words)
	}
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, said("requests", "rate_limit_exceeded", "Please try again in 7.5s."))
	}, Options{})
	_, err := call(t.Context(), c, false)
	require.Equal(t, 7500*time.Millisecond, wantError(t, err, llm.KindRateLimited).RetryAfter)
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
		`{"message":"words","code":"429"}`:                      llm.KindRateLimited,
		`{"message":"words","status":"UNAVAILABLE"}`:            llm.KindOverloaded,
		`{"message":"words","status_code":503}`:                 llm.KindOverloaded,
		`{"message":"words"}`:                                   llm.KindBroken,
		`"words"`:                                               llm.KindBroken,
	} {
		_, err := call(t.Context(), serve(t, script("data: \"half\"\n\n: ping\n\ndata: {\"id\":\"x\",\"error\":"+text+"}\n\n"), Options{}), true)
		require.Equal(t, "words", wantError(t, err, want).Message)
	}
}

func TestSecretIsKept(t *testing.T) {
	key := secretsOf(Options{APIKey: testKey})
	require.Equal(t, "bad key [secret], and \uFFFD", key.clean("bad key "+testKey+", and \xff"))
	require.Nil(t, key.harmless(errors.New("POST https://x:"+testKey+"@y")))
	require.Error(t, key.harmless(errors.New("refused")))
	require.Equal(t, "none is set", secretsOf(Options{APIKey: "none"}).clean("none is set"), "a placeholder is an ordinary word")
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

// Keys also stand in headers and in the query.
func TestNoErrorHoldsAHeaderOrAParameter(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = fmt.Fprintf(w, `{"error":{"message":"bad: %s, %s, %s"}}`, r.Header.Get("Authorization"), r.Header.Get("X-Gateway"), r.URL.Query().Get("sig"))
	}, Options{
		Header: http.Header{"Authorization": {"Bearer gateway-0123"}, "X-Gateway": {"gateway-0123-4567"}},
		Query:  map[string]string{"sig": "signature 0123"},
	})
	_, err := call(t.Context(), c, false)
	require.Equal(t, "bad: Bearer [secret], [secret], [secret]", wantError(t, err, llm.KindAuth).Message)
}
