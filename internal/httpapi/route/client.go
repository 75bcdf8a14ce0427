package route

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/moorebus/moorebus/internal/refusal"
)

// Client sends requests to a gateway, or to handlers in this process, see [InProcess]. It is safe
// for concurrent use.
type Client struct {
	// URL is where the gateway's paths begin.
	URL       string
	Transport http.RoundTripper
	// Namespace is that of requests that name none. May be empty: the gateway's.
	Namespace string
	// Timeout bounds a request and its answer, streams excepted. 0: nothing does.
	Timeout time.Duration
}

// The limits of answers, in bytes. An answer that shows a run's memory is large.
const (
	maxAnswer = 256 << 20
	maxError  = 1 << 20
)

// Send sends a request and returns the answer if it is a success.
func (c Client) Send(r *http.Request) (*http.Response, error) {
	resp, err := c.Transport.RoundTrip(r)
	if err != nil || resp.StatusCode/100 == 2 {
		return resp, err
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	if to := resp.Header.Get("Location"); resp.StatusCode/100 == 3 {
		return nil, fmt.Errorf("%s redirects to %q; a token is sent to nobody else, so give the gateway's own URL", c.URL, to)
	}
	return nil, c.failure(resp)
}

// failure returns the refusal in an answer.
func (c Client) failure(resp *http.Response) error {
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxError))
	if err != nil {
		return err
	}
	fields := map[string]any{}
	_ = json.Unmarshal(data, &fields) // what is no object has no code
	code, _ := fields["code"].(string)
	message, _ := fields["message"].(string)
	switch {
	case code != "":
	case resp.StatusCode >= http.StatusBadGateway:
		code, message = refusal.CodeUnavailable, fmt.Sprintf("%s answers %s", c.URL, resp.Status)
	default:
		return c.NotAGateway(resp.Status)
	}
	delete(fields, "code")
	delete(fields, "message")
	e := refusal.New(KindOf(resp.StatusCode), code, "%s", message).With(fields)
	if after, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		e.RetryAfter = time.Duration(after) * time.Second
	}
	return e
}

// NotAGateway is the error of an answer that no gateway gives.
func (c Client) NotAGateway(what string) error {
	return fmt.Errorf("%s is no gateway, or one of another version of Moorebus: it answers %s", c.URL, what)
}

// call sends a request and reads the answer into into: JSON, or bytes as they are.
func (c Client) call(r *http.Request, into any) error {
	if c.Timeout > 0 {
		ctx, stop := context.WithTimeout(r.Context(), c.Timeout)
		defer stop()
		r = r.WithContext(ctx)
	}
	resp, err := c.Send(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	if a, is := into.(interface{ ReadHeader(http.Header) }); is {
		a.ReadHeader(resp.Header)
	}
	body := io.Reader(resp.Body)
	if c.URL != "" { // a handler in this process has no limit
		body = io.LimitReader(body, maxAnswer+1)
	}
	data, err := io.ReadAll(body)
	switch {
	case err != nil:
		return err
	case c.URL != "" && len(data) > maxAnswer:
		return fmt.Errorf("the answer of %s is larger than %d MiB", c.URL, maxAnswer>>20)
	}
	if raw, is := into.(*[]byte); is {
		*raw = data
		return nil
	}
	if err := json.Unmarshal(data, into); err != nil {
		return c.NotAGateway("what is not its JSON: " + err.Error())
	}
	return nil
}
