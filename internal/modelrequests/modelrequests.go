// Package modelrequests rebuilds requests to models, to show them. It uses the adapters of their
// APIs, and knows neither keys nor servers.
package modelrequests

import (
	"log/slog"

	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/textprotocol"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/anthropic"
	"github.com/moorebus/moorebus/pkg/llm/openai"
	"github.com/moorebus/moorebus/pkg/llm/responses"
)

// Chat writes requests in the form of chat completions, for models without an API.
var Chat = plain(providers.OpenAI)[0]

// plain returns what writes requests to an API, of a server that is not known and of the
// provider's own.
func plain(dialect string) (writers []llm.Writer) {
	for _, base := range []string{"http://unknown.invalid", ""} {
		var writer llm.Writer
		var err error
		switch dialect { // a key is wanted and never sent
		case providers.Anthropic:
			writer, err = anthropic.New(anthropic.Options{BaseURL: base, APIKey: "none"})
		case providers.Responses:
			writer, err = responses.New(responses.Options{BaseURL: base, APIKey: "none"})
		default:
			writer, err = openai.New(openai.Options{BaseURL: base, APIKey: "none"})
		}
		if err != nil {
			panic(err) // the options are constants
		}
		writers = append(writers, writer)
	}
	return writers
}

// On returns what writes the requests to models of the runs on a bus. callers are those of this
// process's planner; nil: it has none.
func On(bus journal.Bus, store *runlog.Store, callers map[string]llm.Caller, logger *slog.Logger) *planner.Requests {
	questions, _ := bus.(ports.Questions)
	return planner.NewRequests(planner.RequestsConfig{
		Store: store, Blobs: bus, Text: textprotocol.Wrap, Chat: Chat, Providers: callers, Questions: questions, Plain: plain, Logger: logger,
	})
}
