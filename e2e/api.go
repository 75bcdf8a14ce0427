package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/moorebus/moorebus/internal/openapitest"
)

// api is a client of the gateway's HTTP.
type api struct {
	t    *testing.T
	base string
	http *http.Client
	// chunks counts the parts of replies that the feeds have shown.
	chunks atomic.Int64
}

func newAPI(t *testing.T, base string) *api {
	// A request of a goroutine may outlive the test's last line, but not its cleanup.
	found := new(failures)
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	client := &http.Client{Transport: &openapitest.Transport{Base: transport, Fail: found.add}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		found.report(t)
	})
	return &api{t: t, base: base, http: client}
}

// failures are what answers have that the description of the API has not.
type failures struct {
	mu  sync.Mutex
	all []string
}

func (f *failures) add(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, fmt.Sprintf(format, args...))
}

func (f *failures) report(t *testing.T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, text := range f.all {
		t.Error(text)
	}
}

// apiError is an answer that is not 2xx. Every one has a stable code.
type apiError struct {
	Status  int    `json:"-"`
	Code    string `json:"code"`
	Message string `json:"message"`
	Body    string `json:"-"`
}

func (e *apiError) Error() string { return fmt.Sprintf("HTTP %d: %s", e.Status, e.Body) }

// do makes a request; body is nil, bytes that go out as they are, or a value
// that goes out as JSON. With a content type it stands for JSON's.
func (a *api) do(ctx context.Context, method, path string, body any, contentType ...string) (status int, answer []byte, err error) {
	var reader io.Reader
	if body != nil {
		data, raw := body.([]byte)
		if !raw {
			if data, err = json.Marshal(body); err != nil {
				return 0, nil, err
			}
		}
		reader = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, a.base+path, reader)
	if err != nil {
		return 0, nil, err
	}
	if body != nil {
		request.Header.Set("Content-Type", append(slices.Clone(contentType), "application/json")[0])
	}
	response, err := a.http.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err = io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

var snakeCase = regexp.MustCompile(`^[a-z]+(_[a-z0-9]+)*$`)

// call makes a request and decodes a 2xx answer into out, unless that is nil.
// Any other answer is an [*apiError], which has to have a code and a message.
func (a *api) call(ctx context.Context, method, path string, body, out any, contentType ...string) error {
	status, answer, err := a.do(ctx, method, path, body, contentType...)
	if err != nil {
		return err
	}
	if status/100 == 2 {
		if out == nil {
			return nil
		}
		return json.Unmarshal(answer, out)
	}
	refusal := &apiError{Status: status, Body: string(answer)}
	if err := json.Unmarshal(answer, refusal); err != nil || !snakeCase.MatchString(refusal.Code) || refusal.Message == "" {
		return fmt.Errorf("HTTP %d without code and message: %.200q", status, answer)
	}
	return refusal
}

func (a *api) get(ctx context.Context, path string, out any) error {
	return a.call(ctx, http.MethodGet, path, nil, out)
}

// persist repeats a request while the gateway is away, or says that it is not
// ready, or does not know yet what a role has to announce.
func (a *api) persist(ctx context.Context, method, path string, body, out any) error {
	for {
		err := a.call(ctx, method, path, body, out)
		var refusal *apiError
		if err == nil || errors.As(err, &refusal) && refusal.Status < 500 && refusal.Code != "unknown_provider" && refusal.Code != "unknown_tool" {
			return err
		}
		if wait(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("%s %s: %w", method, path, err)
		}
	}
}

// wait pauses between two tries, and ends early with the context.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// agent is an agent's definition, as far as these tests write one.
type agent struct {
	Name         string            `json:"name"`
	SystemPrompt string            `json:"system_prompt,omitempty"`
	Mode         string            `json:"mode,omitempty"`
	LLM          map[string]any    `json:"llm"`
	Models       map[string]string `json:"models,omitempty"`
	Config       map[string]any    `json:"config,omitempty"`
	Tools        []string          `json:"tools,omitempty"`
	Approval     map[string]any    `json:"approval,omitempty"`
	Budget       map[string]any    `json:"budget,omitempty"`
	ClientTools  []clientTool      `json:"client_tools,omitempty"`
}

// clientTool is a tool that the test itself carries out.
type clientTool struct {
	Name        string         `json:"name"`
	Description string         `json:"description"`
	Schema      map[string]any `json:"schema"`
	Timeout     string         `json:"timeout,omitempty"`
}

type runRequest struct {
	Agent any    `json:"agent"`
	Task  string `json:"task"`
	Mode  string `json:"mode,omitempty"`
	RunID string `json:"run_id,omitempty"`
}

// newRunID makes a run's id.
func newRunID() string { return uuid.Must(uuid.NewV7()).String() }

// start starts a run under an id of the caller's, so that it can be tried again.
func (a *api) start(ctx context.Context, r runRequest) error {
	var started struct {
		RunID string `json:"run_id"`
		N     uint64 `json:"n"`
	}
	err := a.persist(ctx, http.MethodPost, "/v1/runs", r, &started)
	var refusal *apiError
	if errors.As(err, &refusal) && refusal.Code == "run_exists" {
		return nil // an answer was lost on the way
	}
	if err == nil && started.RunID != r.RunID {
		return fmt.Errorf("asked for run %s, got %s", r.RunID, started.RunID)
	}
	return err
}

// say posts the user's messages in one request; ids that are known do nothing.
func (a *api) say(ctx context.Context, run string, turn int, said []message) error {
	inputs := make([]map[string]any, len(said))
	for i, m := range said {
		inputs[i] = map[string]any{"type": "user-message", "message_id": fmt.Sprintf("user-%d-%d", turn, i), "content": m.text()}
	}
	return a.persist(ctx, http.MethodPost, "/v1/runs/"+run+"/inputs", inputs, nil)
}

// closeRun ends a conversation that waits for its user.
func (a *api) closeRun(ctx context.Context, run string) error {
	err := a.persist(ctx, http.MethodPost, "/v1/runs/"+run+"/close", map[string]string{"reason": "the recording is over", "by": "driver"}, nil)
	var refusal *apiError
	if errors.As(err, &refusal) && refusal.Status == http.StatusConflict {
		return nil // an answer was lost on the way; the run's events say how it ended
	}
	return err
}

// runView is the state of a run as the gateway shows it.
type runView struct {
	RunID  string `json:"run_id"`
	State  string `json:"state"`
	N      uint64 `json:"n"`
	Mode   string `json:"mode"`
	Memory memory `json:"memory"`
}

type memory struct {
	Task     string `json:"task"`
	Messages []struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	} `json:"messages"`
	ToolCalls map[string]callRecord `json:"tool_calls"`
	History   []historyEntry        `json:"history"`
	Error     *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
	FinalAnswer     *string `json:"final_answer"`
	PendingApproval *struct {
		Requests []struct {
			CallID string `json:"call_id"`
			Tool   string `json:"tool"`
		} `json:"requests"`
	} `json:"pending_approval"`
}

type callRecord struct {
	Name       string `json:"name"`
	Parameters string `json:"parameters"`
	Result     *struct {
		Success *struct {
			Content string `json:"content"`
		} `json:"success"`
		Failed *struct {
			Error string `json:"error"`
		} `json:"failed"`
	} `json:"result"`
}

type historyEntry struct {
	Tool struct {
		ID        string `json:"id"`
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"tool"`
	Observation string `json:"observation"`
	Success     bool   `json:"success"`
	Code        string `json:"code"`
}

// view returns the run as it is.
func (a *api) view(ctx context.Context, run string) (*runView, error) {
	v := new(runView)
	return v, a.persist(ctx, http.MethodGet, "/v1/runs/"+run, nil, v)
}
