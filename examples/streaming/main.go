// Command streaming prints the model's words as they arrive.
//
//	go run ./examples/streaming
//
// The model is a small, slow server in this process that uses OpenAI's protocol. With
// -openai it is the provider of OPENAI_API_KEY or OPENAI_BASE_URL.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"time"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/llm/openai"
)

func main() {
	remote := flag.Bool("openai", false, "ask the model of OPENAI_API_KEY or OPENAI_BASE_URL")
	flag.Parse()
	options := openai.Options{APIKey: os.Getenv("OPENAI_API_KEY"), BaseURL: os.Getenv("OPENAI_BASE_URL"), Model: "gpt-4o-mini"}
	if !*remote {
		server := httptest.NewServer(model{pace: func() { time.Sleep(20 * time.Millisecond) }})
		defer server.Close()
		options = openai.Options{BaseURL: server.URL, Model: "local"}
	}
	if err := run(context.Background(), os.Stdout, options); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, w io.Writer, options openai.Options) error {
	provider, err := openai.New(options)
	if err != nil {
		return err
	}
	a, err := agent.New("speaker").LLM(provider).Build()
	if err != nil {
		return err
	}
	r, err := a.Start(ctx, agent.Task("Why is the log the truth?"))
	if err != nil {
		return err
	}
	defer func() { _ = r.Release() }()
	for o, err := range r.Outputs(ctx) {
		if err != nil {
			return err
		}
		if token, ok := o.Output.(agent.LLMToken); ok {
			if _, err := io.WriteString(w, token.Text); err != nil {
				return err
			}
		}
	}
	answer, err := r.Wait(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\n(%d characters, as one event of the log)\n", len([]rune(answer)))
	return err
}
