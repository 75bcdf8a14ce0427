package openai_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/openai"
)

// Any server with OpenAI's API will do; here it is one that always says the same.
func ExampleNew() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"model":"small","choices":[{"message":{"content":"Two."},"finish_reason":"stop"}]}`)
	}))
	defer server.Close()
	model, err := openai.New(openai.Options{BaseURL: server.URL + "/v1", Model: "small"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer model.Close()
	reply, err := model.Call(context.Background(), llm.Request{
		Messages: []llm.Message{{Role: llm.RoleUser, Content: "How many moons has Mars?"}},
	}, nil)
	fmt.Println(reply.(llm.Text).Content, err)
	// Output: Two. <nil>
}
