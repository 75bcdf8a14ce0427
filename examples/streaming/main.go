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
	"github.com/moorebus/moorebus/pkg/llm"
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
	a, err := agent.New("Why is the log the truth?").LLM(printed{provider, w}).Build()
	if err != nil {
		return err
	}
	answer, err := a.Run(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\n(%d characters, as one event of the log)\n", len([]rune(answer)))
	return err
}

// printed is a model whose words are printed as they arrive. Anything between an agent
// and its model is a caller that wraps a caller.
type printed struct {
	llm.Caller
	w io.Writer
}

// Call asks the model.
func (p printed) Call(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	return p.Caller.Call(ctx, req, func(c llm.Chunk) {
		if c.Kind == llm.ChunkText {
			_, _ = io.WriteString(p.w, c.Text) // chunks are for showing only
		}
		if stream != nil {
			stream(c) // the chunks go to the bus as well
		}
	})
}
