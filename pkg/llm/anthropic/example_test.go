package anthropic_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/anthropic"
)

// Errors have a kind, which says whether it helps to try again.
func ExampleCaller_Call() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		http.Error(w, `{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}`, http.StatusTooManyRequests)
	}))
	defer server.Close()
	model, err := anthropic.New(anthropic.Options{APIKey: "secret", BaseURL: server.URL, Model: "claude-sonnet-4-5"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer model.Close()
	_, err = model.Call(context.Background(), llm.Request{Messages: []llm.Message{{Role: llm.RoleUser, Content: "Hello."}}}, nil)
	var refused *llm.Error
	if errors.As(err, &refused) {
		fmt.Println(refused.Kind, refused.RetryAfter, refused.Message)
	}
	// Output: rate_limited 7s slow down
}
