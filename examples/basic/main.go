// Command basic is the smallest agent in Go: one tool, one task.
//
//	go run ./examples/basic
//
// It asks OpenAI if OPENAI_API_KEY is set (or the server of OPENAI_BASE_URL), and
// a scripted model otherwise.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/openai"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

func main() {
	if err := run(context.Background(), os.Stdout, os.Getenv); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// planets holds what the search tool can find.
var planets = map[string]string{
	"mars":    "Mars has two moons, Phobos and Deimos.",
	"jupiter": "Jupiter is the largest planet.",
}

type query struct {
	Query string `json:"query" jsonschema:"what to look for"`
}

func search(_ context.Context, in query) (string, error) {
	for name, fact := range planets {
		if strings.Contains(strings.ToLower(in.Query), name) {
			return fact, nil
		}
	}
	return "", fmt.Errorf("nothing is known about %q", in.Query)
}

func run(ctx context.Context, w io.Writer, getenv func(string) string) error {
	searchTool, err := typed.New(tool.Definition{
		Name: "search", Description: "Looks a planet up.", Effect: tool.Pure,
	}, search)
	if err != nil {
		return err
	}
	model, err := caller(w, getenv)
	if err != nil {
		return err
	}
	a, err := agent.New("astronomer").
		SystemPrompt("You answer in one sentence, and only what the search tool says.").
		LLM(model).Tool(searchTool).Build()
	if err != nil {
		return err
	}
	r, err := a.Start(ctx, agent.Task("How many moons does Mars have?"))
	if err != nil {
		return err
	}
	defer func() { _ = r.Release() }()
	answer, err := r.Wait(ctx)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(w, answer); err != nil {
		return err
	}
	return r.Trace().Print(w)
}

func caller(w io.Writer, getenv func(string) string) (llm.Caller, error) {
	if key, base := getenv("OPENAI_API_KEY"), getenv("OPENAI_BASE_URL"); key != "" || base != "" {
		return openai.New(openai.Options{APIKey: key, BaseURL: base, Model: "gpt-4o-mini"})
	}
	_, err := fmt.Fprintln(w, "(the model is scripted; set OPENAI_API_KEY for a real one)")
	return scripted.NewMock(
		scripted.Ask("search", `{"query":"moons of Mars"}`),
		scripted.Say("Mars has two moons, Phobos and Deimos."),
	), err
}
