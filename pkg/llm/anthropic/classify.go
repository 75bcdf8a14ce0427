package anthropic

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	sdk "github.com/anthropics/anthropic-sdk-go"

	"github.com/moorebus/moorebus/pkg/llm"
)

// classify is the one place that sorts what the library and the network answer.
func (c *Caller) classify(err error, d *doer) *llm.Error {
	var (
		stated    *sdk.Error
		transport *transportError
	)
	switch {
	case errors.As(err, &stated):
		return c.stated([]byte(stated.RawJSON()), d)
	case errors.Is(err, errTooLarge):
		return &llm.Error{
			Kind: llm.KindOther, Status: d.status, Err: errTooLarge,
			Message: fmt.Sprintf("the server's reply is larger than %d bytes", c.opts.MaxBytes),
		}
	case errors.As(err, &transport):
		return &llm.Error{Kind: llm.KindNetwork, Status: d.status, Message: c.key.Clean(err.Error()), Err: c.key.Harmless(err)}
	case err == nil:
		err = fmt.Errorf("HTTP %d %s", d.status, http.StatusText(d.status))
	}
	return &llm.Error{
		Kind: llm.KindOther, Status: d.status, Err: c.key.Harmless(err),
		Message: c.key.Clean("the server's reply is not a message (is the base URL right?): " + err.Error()),
	}
}

// problem is what a server said about a failure. In a stream the status is that
// of its beginning.
type problem struct {
	status  int
	kind    string
	message string
}

func (c *Caller) stated(body []byte, d *doer) *llm.Error {
	var shape struct {
		Error struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		} `json:"error"`
	}
	p := problem{status: d.status}
	if json.Unmarshal(body, &shape) == nil {
		p.kind, p.message = shape.Error.Type, shape.Error.Message
	}
	if p.message == "" {
		p.message = strings.TrimSpace(fmt.Sprintf("HTTP %d %s", p.status, http.StatusText(p.status)))
		if words := strings.TrimSpace(string(body)); words != "" {
			p.message += ": " + words
		}
	}
	message := p.message
	if outOfCredit(p) {
		message = "the account has no credit left; add some, then start again: " + message
	}
	return &llm.Error{
		Kind:       kind(p),
		Message:    c.key.Clean(message),
		RetryAfter: llm.RetryAfter(d.header, time.Now()),
		Status:     p.status,
	}
}

// kind sorts by the error's type, then by the status.
func kind(p problem) llm.ErrorKind {
	switch {
	case outOfCredit(p):
		return llm.KindInvalid // the key is good, and it does not pass with time
	case tooLong(p):
		return llm.KindContextTooLong
	}
	switch p.kind {
	case "rate_limit_error":
		return llm.KindRateLimited
	case "overloaded_error", "api_error", "timeout_error":
		return llm.KindOverloaded
	case "authentication_error", "permission_error":
		return llm.KindAuth
	case "invalid_request_error", "not_found_error":
		return llm.KindInvalid
	}
	return kindOfStatus(p.status)
}

func kindOfStatus(status int) llm.ErrorKind {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		return llm.KindAuth
	case http.StatusTooManyRequests:
		return llm.KindRateLimited
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly:
		return llm.KindOverloaded
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return llm.KindInvalid
	}
	switch {
	case status >= 500: // 529 is Anthropic's own: overloaded
		return llm.KindOverloaded
	case status >= 400:
		return llm.KindInvalid
	}
	return llm.KindOther
}

func outOfCredit(p problem) bool {
	return p.kind == "billing_error" || p.status == http.StatusPaymentRequired ||
		p.kind == "invalid_request_error" && strings.Contains(p.message, "credit balance is too low")
}

// tooLong: for a conversation that does not fit the API has no type of its own,
// only these words.
func tooLong(p problem) bool {
	if p.kind == "request_too_large" || p.status == http.StatusRequestEntityTooLarge {
		return true
	}
	return p.kind == "invalid_request_error" &&
		(strings.Contains(p.message, "prompt is too long") || strings.Contains(p.message, "exceed context limit"))
}

func invalid(message string) *llm.Error {
	return &llm.Error{Kind: llm.KindInvalid, Message: message}
}
