package main

import (
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/rogpeppe/go-internal/testscript"
)

// modelCommand is `model`: it starts a model that answers `It is 42.` for 1,000
// tokens of input and 500 of output, and has the environment name it.
func modelCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: model")
	}
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, `data: {"id":"1","object":"chat.completion.chunk","model":"house-1-2026-01-31",`+
			`"choices":[{"index":0,"delta":{"role":"assistant","content":"It is 42."},"finish_reason":"stop"}]}

data: {"id":"1","object":"chat.completion.chunk","model":"house-1-2026-01-31","choices":[],`+
			`"usage":{"prompt_tokens":1000,"completion_tokens":500,"total_tokens":1500}}

data: [DONE]

`)
	}))
	ts.Defer(model.Close)
	ts.Setenv("OPENAI_BASE_URL", model.URL+"/v1")
	ts.Setenv("OPENAI_MODEL", "house-1")
}
