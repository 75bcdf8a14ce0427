// Command anthropic is an agent on an Anthropic model that thinks before it acts.
//
//	go run ./examples/anthropic
//
// It asks the real model if ANTHROPIC_API_KEY is set (ANTHROPIC_MODEL names the model),
// and otherwise a small server in this process that uses the same wire format.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"os"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/anthropic"
)

func main() {
	if err := run(context.Background(), os.Stdout, os.Getenv); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type planet struct {
	Name string `json:"name" jsonschema:"the planet's name"`
}

func moons(_ context.Context, in planet) ([]string, error) {
	if in.Name != "Mars" {
		return nil, fmt.Errorf("the moons of %q are not known here", in.Name)
	}
	return []string{"Phobos", "Deimos"}, nil
}

func run(ctx context.Context, w io.Writer, getenv func(string) string) error {
	options := anthropic.Options{APIKey: getenv("ANTHROPIC_API_KEY"), Model: getenv("ANTHROPIC_MODEL")}
	if options.Model == "" {
		options.Model = "claude-sonnet-4-5"
	}
	if options.APIKey == "" {
		server := httptest.NewServer(model{})
		defer server.Close()
		options.BaseURL = server.URL
		if _, err := fmt.Fprintln(w, "(the model is a server in this process; set ANTHROPIC_API_KEY for a real one)"); err != nil {
			return err
		}
	}
	provider, err := anthropic.New(options)
	if err != nil {
		return err
	}
	defer provider.Close()
	a, err := agent.New("astronomer").
		SystemPrompt("You answer in one sentence, and only what the tool says.").
		LLM(watched{provider, w}).ThinkingTokens(1024).
		Tool(agent.Func("moons", "Lists the moons of a planet.", moons, agent.Pure)).
		Build()
	if err != nil {
		return err
	}
	answer, err := a.Run(ctx, "How many moons does Mars have?")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, answer)
	return err
}

// watched is a model that prints what it thought before its calls. The runtime does the
// rest: the log holds the thinking beside the calls, signed by the provider, and sends it
// back with their results, as the API requires.
type watched struct {
	llm.Caller
	w io.Writer
}

// Call asks the model.
func (m watched) Call(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	for _, message := range req.Messages {
		if err := show(m.w, "goes back", message.Reasoning); err != nil {
			return nil, err
		}
	}
	res, err := m.Caller.Call(ctx, req, stream)
	if err != nil {
		return nil, err
	}
	return res, show(m.w, "thought", res.About().Reasoning)
}

// show prints the thinking. Its signature is for the provider alone.
func show(w io.Writer, what string, reasoning events.Reasoning) error {
	for i, part := range reasoning {
		if part.Kind != events.ReasoningText {
			continue
		}
		var signature string
		if i+1 < len(reasoning) {
			if err := json.Unmarshal(reasoning[i+1].Data, &signature); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintf(w, "%s: %s (signed, %d bytes)\n", what, part.Text, len(signature)); err != nil {
			return err
		}
	}
	return nil
}
