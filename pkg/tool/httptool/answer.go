package httptool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/truncate"
	"github.com/moorebus/moorebus/pkg/tool"
)

// read returns the body of a good answer, cut at the limit. One byte beyond it
// tells whether there is more; an answer that breaks off is not a result.
func (t *httpTool) read(ctx context.Context, res *http.Response) (string, error) {
	var body strings.Builder
	n, err := io.Copy(&body, io.LimitReader(res.Body, t.max+1))
	if err != nil {
		return "", t.broken(ctx, n, err)
	}
	return truncate.Result(body.String(), t.max, res.ContentLength), nil
}

// broken is the failure of an answer that ended in the middle of its body.
func (t *httpTool) broken(ctx context.Context, n int64, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("reading the answer: %w", ctx.Err())
	}
	return tool.Failf(tool.CodeUnreachable, "the answer of %s broke off after %d bytes: %v", t.place(), n, err)
}

// transportFailure is the classifier of the client's errors.
func (t *httpTool) transportFailure(ctx context.Context, sent *sentMark, err error) error {
	// The client's own wrapping quotes the whole URL with its query.
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	f := tool.Failf(tool.CodeUnreachable, "%s cannot be reached: %v", t.place(), err)
	if sent.connected.Load() {
		f.Message = fmt.Sprintf("no answer came from %s: %v", t.place(), err)
	} else {
		f.NotSent = true
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		f.Code = tool.CodeTimeout
	} else if ctx.Err() != nil {
		f.Code = tool.CodeCancelled
	}
	return f
}

// place is the endpoint as errors may name it: without user, path and query,
// each of which may hold a key.
func (t *httpTool) place() string { return t.url.Scheme + "://" + t.url.Host }

// statusFailure is the failure of an answer that is not 2xx.
func statusFailure(res *http.Response) error {
	// What can be read of the body is enough; the status is the news.
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxErrorBody+1))
	f := tool.Failf(tool.CodeHTTPStatus, "HTTP status %d", res.StatusCode)
	if text := http.StatusText(res.StatusCode); text != "" {
		f.Message += " " + text
	}
	if location := res.Header.Get("Location"); location != "" && res.StatusCode < 400 {
		f.Message += " (a redirect, not followed)"
	}
	if text := strings.TrimSpace(string(body)); text != "" {
		f.Message += ": " + truncate.Result(text, maxErrorBody, res.ContentLength)
	}
	f.Passing = res.StatusCode == http.StatusTooManyRequests || res.StatusCode >= 500
	if f.RetryAfter = retry.ParseHeader(res.Header.Get("Retry-After"), time.Now()); f.RetryAfter > 0 {
		f.Message += fmt.Sprintf(" (try again in %s)", f.RetryAfter.Round(time.Second))
	}
	return f
}
