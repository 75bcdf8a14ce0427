package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/sashabaranov/go-openai"
)

// problem is what a server said about a failure.
type problem struct {
	status  int
	code    string
	kind    string
	message string
}

// classify is the one place that sorts what the library and the network answer.
func (c *Caller) classify(err error, x *exchange) *llm.Error {
	var (
		api       *openai.APIError
		request   *openai.RequestError
		transport *transportError
	)
	switch {
	// First, as it wraps an empty APIError where the body was something else.
	case errors.As(err, &request):
		return c.stated(fromBody(request.Body, x.status), x)
	case errors.As(err, &api):
		return c.stated(fromAPIError(api, x.status), x)
	case errors.Is(err, errTooLarge):
		return &llm.Error{
			Kind: llm.KindOther, Status: x.status, Err: errTooLarge,
			Message: fmt.Sprintf("the server's reply is larger than %d bytes", c.opts.MaxBytes),
		}
	case errors.As(err, &transport):
		return &llm.Error{Kind: llm.KindNetwork, Status: x.status, Message: c.key.Clean(err.Error()), Err: c.key.Harmless(err)}
	}
	return &llm.Error{
		Kind: llm.KindOther, Status: x.status, Err: c.key.Harmless(err),
		Message: c.key.Clean("the server's reply is not a chat completion (is the base URL right?): " + err.Error()),
	}
}

func (c *Caller) stated(p problem, x *exchange) *llm.Error {
	if p.message == "" {
		p.message = strings.TrimSpace(fmt.Sprintf("HTTP %d %s", p.status, http.StatusText(p.status)))
	}
	message := p.message
	if outOfCredit(p) {
		message = "the account has no credit left; add some, then start again: " + message
	}
	return &llm.Error{
		Kind:       kind(p),
		Message:    c.key.Clean(message),
		RetryAfter: llm.RetryAfter(x.header, time.Now()),
		Status:     p.status,
	}
}

// fromAPIError reads an error in OpenAI's format. In a stream, where the status
// was a 200, some servers give the status as a numeric code.
func fromAPIError(e *openai.APIError, status int) problem {
	p := problem{status: status, kind: e.Type, message: e.Message}
	switch code := e.Code.(type) {
	case string:
		p.code = code
	case int:
		if status < http.StatusBadRequest && code >= http.StatusBadRequest && code < 600 {
			p.status = code
		}
	}
	return p
}

// fromBody reads an error in any other format: JSON of another shape, a page of
// a proxy, or nothing.
func fromBody(body []byte, status int) problem {
	var shape struct {
		Error   any    `json:"error"`
		Message any    `json:"message"`
		Detail  any    `json:"detail"`
		Code    any    `json:"code"`
		Type    string `json:"type"`
	}
	p := problem{status: status}
	if json.Unmarshal(body, &shape) == nil {
		p.kind = shape.Type
		p.code, _ = shape.Code.(string)
		for _, words := range []any{shape.Error, shape.Message, shape.Detail} {
			if s, ok := words.(string); ok && s != "" {
				p.message = s
				return p
			}
		}
	}
	if words := strings.TrimSpace(string(body)); words != "" {
		p.message = fmt.Sprintf("HTTP %d %s: %s", status, http.StatusText(status), words)
	}
	return p
}

// kind sorts by the error's code, then by its status, then by its type.
func kind(p problem) llm.ErrorKind {
	switch {
	case outOfCredit(p):
		// Not auth, as the key is good, and no rate limit either: it does not pass
		// with time, so it must not be tried again.
		return llm.KindInvalid
	case tooLong(p):
		return llm.KindContextTooLong
	}
	if k := kindOfStatus(p.status); k != "" {
		return k
	}
	return kindOfWords(p)
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
	case status >= 500:
		return llm.KindOverloaded
	case status >= 400:
		return llm.KindInvalid
	}
	return ""
}

// kindOfWords is for errors in the middle of a stream, which have no status.
func kindOfWords(p problem) llm.ErrorKind {
	for _, word := range []string{p.code, p.kind} {
		switch word {
		case "rate_limit_exceeded", "rate_limit_error", "tokens", "requests":
			return llm.KindRateLimited
		case "server_error", "api_error", "overloaded", "overloaded_error", "service_unavailable", "timeout":
			return llm.KindOverloaded
		case "invalid_api_key", "authentication_error", "permission_error":
			return llm.KindAuth
		case "invalid_request_error", "model_not_found", "content_filter", "BadRequestError":
			return llm.KindInvalid
		}
	}
	return llm.KindOther
}

func outOfCredit(p problem) bool {
	switch p.code {
	case "insufficient_quota", "billing_hard_limit_reached", "billing_not_active":
		return true
	}
	return p.kind == "insufficient_quota" || p.status == http.StatusPaymentRequired
}

func tooLong(p problem) bool {
	if p.status == http.StatusRequestEntityTooLarge {
		return true
	}
	for _, word := range []string{p.code, p.kind} {
		switch word {
		case "context_length_exceeded", "string_above_max_length", "exceed_context_size_error":
			return true
		}
	}
	// Several servers give no code for it, only these words.
	return p.status == http.StatusBadRequest && strings.Contains(p.message, "maximum context length")
}

func invalid(message string) *llm.Error {
	return &llm.Error{Kind: llm.KindInvalid, Message: message}
}
