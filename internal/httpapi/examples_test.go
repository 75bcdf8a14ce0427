package httpapi_test

import (
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	webhooks "github.com/moorebus/moorebus/internal/feature/webhooks/row"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/pkg/events"
)

// The examples of docs/http-api.md and of /openapi.json work.
func TestExamplesOfTheDescription(t *testing.T) {
	t.Parallel()
	bus := natsBus(t, 1)
	r := newRig(t, bus, func(c *config) { c.Alarms = bus })
	answering := func(p events.Payload, mode string) string {
		id := r.start(mode)
		r.Happens(id, events.Planning, p)
		return id
	}
	chat := func() string { return answering(turnDone("Hello."), "chat") }
	givenUp := func() string {
		require.Equal(t, http.StatusOK, r.do("PUT", "/v1/webhooks/pager", `{"url": "https://hooks.example"}`).status)
		const event = "0198c5a0-5a6b-7c00-8000-000000000001"
		_, err := bus.Put(t.Context(), webhooks.Bucket, kv.Item{Key: "dead.default.pager." + event, Value: []byte(`{"event":"` + event + `"}`)})
		require.NoError(t, err)
		return "pager"
	}
	// For each request, what is there before it; the string is the path's {id} or {name}.
	before := map[string]func() string{
		"postRuns": func() string {
			require.Equal(t, http.StatusOK, r.do("PUT", "/v1/agents/researcher", `{"llm":{"provider":"openai"},"tools":["search"]}`).status)
			return ""
		},
		"postRunsIdFork":   chat,
		"postRunsIdInputs": chat,
		"postRunsIdDecisions": func() string {
			return r.held("pay", []string{"call_1"})
		},
		"postRunsIdBudget": chat,
		"postRunsIdCancel": chat,
		"postRunsIdPause":  chat,
		"postRunsIdResume": func() string {
			id := chat()
			require.Equal(t, http.StatusOK, r.do("POST", "/v1/runs/"+id+"/pause", "").status)
			return id
		},
		"postRunsIdClose":   chat,
		"patchRunsIdLabels": chat,
		"postDeadDrop": func() string {
			a := r.do("POST", "/v1/runs", strings.Replace(startBody("task"), "{", `{"run_id": "0198c5a0-5a6b-7c00-8000-000000000001", `, 1))
			require.Equal(t, http.StatusCreated, a.status, a.body)
			r.Happens("0198c5a0-5a6b-7c00-8000-000000000001", events.Planning, &events.FatalError{Outcome: events.Outcome{Code: "stalled", Message: "because"}})
			return ""
		},
		"putWebhooksName":       func() string { return "pager" },
		"postWebhooksNameRetry": givenUp,
		"postWebhooksNameDrop":  givenUp,
		"putSchedulesName": func() string {
			require.Equal(t, http.StatusOK, r.do("PUT", "/v1/agents/researcher", `{"llm":{"provider":"openai"}}`).status)
			return "news"
		},
		"putQuotasScope":       func() string { return "all" },
		"putAgentsName":        func() string { return "researcher" },
		"putAgentsNameStorage": func() string { return "researcher" },
	}
	var d struct {
		Paths map[string]map[string]struct {
			ID   string `json:"operationId"`
			Body struct {
				Content map[string]struct{ Example json.RawMessage }
			} `json:"requestBody"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(r.do("GET", "/openapi.json", "").body), &d))
	run := 0
	for path, methods := range d.Paths {
		for method, op := range methods {
			example := op.Body.Content["application/json"].Example
			if example == nil {
				require.Empty(t, op.Body.Content, "%s has a body and no Example in its row", op.ID)
				continue
			}
			prepare := before[op.ID]
			require.NotNil(t, prepare, "say above what is there before the example of %s", op.ID)
			id := prepare()
			a := r.do(strings.ToUpper(method), strings.NewReplacer("{id}", id, "{name}", id, "{scope}", id).Replace(path), string(example), "Content-Type", "application/json")
			require.Less(t, a.status, 300, "%s: %s", op.ID, a.body)
			run++
		}
	}
	require.Equal(t, len(before), run)
}

var inputExample = regexp.MustCompile("(?m)^\\| `[a-z-]+` .*\\| `(\\{\"type\".*\\})` \\|$")

// The inputs that docs/reference/http.md shows are well formed, and the bodies of the curl
// commands are the same ones.
func TestInputsOfThePage(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	page, err := os.ReadFile("../../docs/reference/http.md")
	require.NoError(t, err)
	examples := inputExample.FindAllStringSubmatch(string(page), -1)
	require.Len(t, examples, 7)
	for _, example := range examples {
		id := r.start("chat")
		r.Happens(id, events.Planning, turnDone("Hello."))
		a := r.do("POST", "/v1/runs/"+id+"/inputs", "["+example[1]+"]")
		// The run has no calls and no model of its client's.
		require.Contains(t, []int{200, 404, 409, 422}, a.status, "%s: %s", example[1], a.body)
		require.Contains(t, string(page), "post '"+example[1]+"'")
	}
}
