package llmhttp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/llm"
)

// Invalid returns the error of a request that cannot be sent.
func Invalid(message string) *llm.Error {
	return &llm.Error{Kind: llm.KindInvalid, Message: message}
}

// Decode reads the reply's JSON. The error says that the base URL may be wrong.
func (r *Reply) Decode(v any) error {
	if err := json.NewDecoder(bytes.NewReader(r.Body)).Decode(v); err != nil {
		return r.Unfit(err)
	}
	return nil
}

// Unfit is the error of a reply that is none of the API's; why says what it lacks.
func (r *Reply) Unfit(why error) *llm.Error {
	c := r.client
	return &llm.Error{
		Kind: llm.KindOther, Status: r.status, Err: c.key.harmless(why),
		Message: c.key.clean(fmt.Sprintf("the server's reply is not %s (is the base URL right?): %v", c.row.Reply, why)),
	}
}

func (c *Client) network(err error, status int) *llm.Error {
	return &llm.Error{Kind: llm.KindNetwork, Status: status, Message: c.key.clean(err.Error()), Err: c.key.harmless(err)}
}

func (c *Client) tooLarge(status int) *llm.Error {
	return &llm.Error{
		Kind: llm.KindOther, Status: status, Err: errTooLarge,
		Message: fmt.Sprintf("the server's reply is larger than %d bytes", c.opts.MaxBytes),
	}
}

// stated is an error in the provider's words, or errNoStream.
func (c *Client) stated(body []byte, resp *http.Response) error {
	p := read(body, resp.StatusCode)
	if p.param == "stream" || p.param == "stream_options" {
		return errNoStream
	}
	message := p.message
	if p.outOfCredit() {
		message = "the account has no credit left; add some, then start again: " + message
	}
	return &llm.Error{
		Kind: p.sort(c.row.TypeFirst), Status: p.status, Message: c.key.clean(message), RetryAfter: retry.FromHeader(resp.Header, time.Now()),
	}
}

// problem is what a server said about a failure.
type problem struct {
	status                     int
	code, kind, param, message string
}

// read finds the words in JSON of any of the usual shapes. Anything else, such as
// a proxy's page, is the message as it is.
func read(body []byte, status int) problem {
	p := problem{status: status}
	var said map[string]any
	_ = json.Unmarshal(body, &said) // else there are no words
	if inner, ok := said["error"].(map[string]any); ok {
		said = inner
	}
	p.kind, _ = said["type"].(string)
	p.param, _ = said["param"].(string)
	switch code := said["code"].(type) {
	case string:
		p.code = code
	case float64: // in a stream, some servers give the status as the code
		if status < 400 && code >= 400 && code < 600 {
			p.status = int(code)
		}
	}
	for _, key := range []string{"error", "message", "detail"} {
		if p.message = words(said[key]); p.message != "" {
			return p
		}
	}
	p.message = fmt.Sprintf("HTTP %d %s", p.status, http.StatusText(p.status))
	if text := strings.TrimSpace(string(body)); text != "" {
		p.message += ": " + text
	}
	return p
}

func words(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []any:
		var all []string
		for _, one := range v {
			if s, ok := one.(string); ok {
				all = append(all, s)
			}
		}
		return strings.Join(all, ", ")
	}
	return ""
}

// sort gives the problem's kind by its status and, where that says nothing, by its
// code or type; with typeFirst the other way round.
func (p problem) sort(typeFirst bool) llm.ErrorKind {
	switch {
	case p.outOfCredit():
		// Not auth, since the key is good, and no rate limit: it does not pass.
		return llm.KindInvalid
	case p.tooLong():
		return llm.KindContextTooLong
	}
	ways := []llm.ErrorKind{kindOfStatus(p.status), kindOfWord[p.code], kindOfWord[p.kind], llm.KindOther}
	if typeFirst {
		ways[0], ways[2] = ways[2], ways[0]
	}
	return ways[slices.IndexFunc(ways, func(k llm.ErrorKind) bool { return k != "" })]
}

func kindOfStatus(status int) llm.ErrorKind {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		return llm.KindAuth
	case http.StatusTooManyRequests:
		return llm.KindRateLimited
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, 498: // 498: no capacity
		return llm.KindOverloaded
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return llm.KindInvalid
	}
	switch {
	case status >= 500: // also 529: overloaded
		return llm.KindOverloaded
	case status >= 400:
		return llm.KindInvalid
	}
	return ""
}

// kindOfWord sorts the codes and types of all APIs.
var kindOfWord = map[string]llm.ErrorKind{
	"rate_limit_exceeded": llm.KindRateLimited, "rate_limit_error": llm.KindRateLimited,
	"tokens": llm.KindRateLimited, "requests": llm.KindRateLimited,
	"server_error": llm.KindOverloaded, "api_error": llm.KindOverloaded, "overloaded": llm.KindOverloaded,
	"overloaded_error": llm.KindOverloaded, "service_unavailable": llm.KindOverloaded,
	"timeout": llm.KindOverloaded, "timeout_error": llm.KindOverloaded,
	"invalid_api_key": llm.KindAuth, "authentication_error": llm.KindAuth, "permission_error": llm.KindAuth,
	"invalid_request_error": llm.KindInvalid, "not_found_error": llm.KindInvalid, "model_not_found": llm.KindInvalid,
	"content_filter": llm.KindInvalid, "BadRequestError": llm.KindInvalid,
}

func (p problem) outOfCredit() bool {
	for _, word := range []string{p.code, p.kind} {
		switch word {
		case "insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "billing_error":
			return true
		}
	}
	return p.status == http.StatusPaymentRequired ||
		p.kind == "invalid_request_error" && strings.Contains(p.message, "credit balance is too low")
}

func (p problem) tooLong() bool {
	for _, word := range []string{p.code, p.kind} {
		switch word {
		case "context_length_exceeded", "string_above_max_length", "exceed_context_size_error", "request_too_large":
			return true
		}
	}
	if p.status != http.StatusBadRequest && p.kind != "invalid_request_error" {
		return p.status == http.StatusRequestEntityTooLarge
	}
	// Several APIs have no code for it, only these words.
	for _, words := range []string{"maximum context length", "prompt is too long", "exceed context limit"} {
		if strings.Contains(p.message, words) {
			return true
		}
	}
	return p.status == http.StatusRequestEntityTooLarge
}

// maxMessage bounds what an error repeats of a provider's words, in bytes.
const maxMessage = 2048

// secret is a provider's key, which no error may hold.
type secret string

// clean makes a provider's words fit for a log: without the key, of bounded
// length, valid UTF-8.
func (s secret) clean(message string) string {
	if s.kept() {
		message = strings.ReplaceAll(message, string(s), "[API key]")
	}
	message = strings.ToValidUTF8(message, "\uFFFD")
	if len(message) <= maxMessage {
		return message
	}
	cut := maxMessage
	for !utf8.RuneStart(message[cut]) {
		cut--
	}
	return message[:cut] + "…"
}

// harmless returns err as a cause, or nil if its text holds the key.
func (s secret) harmless(err error) error {
	if s.kept() && strings.Contains(err.Error(), string(s)) {
		return nil
	}
	return err
}

// kept reports whether there is a key to keep. A shorter one is a placeholder
// for a server that wants none ("none", "ollama"), and an ordinary word.
func (s secret) kept() bool { return len(s) >= 8 }
