package agui

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// FuzzInput: a body is a RunAgentInput within its limits, or is refused. A text approves nothing, and a
// truth value answers no question.
func FuzzInput(f *testing.F) {
	for _, body := range []string{
		`{"threadId":"t","runId":"r","messages":[{"id":"m","role":"user","content":"Hi."}],"tools":[{"name":"f","description":"d","parameters":{"type":"object"}}],"context":[{"value":"v","description":"d"}],"state":{"a":1}}`,
		`{"threadId":"t","runId":"r","messages":[{"id":"m","role":"user","content":[{"type":"text","text":"a"},{"type":"image","source":{"type":"data","value":"iVBORw0KGgo=","mimeType":"image/png"}},{"type":"document","source":{"type":"url","value":"https://x.example/a.pdf"}}]},{"id":"n","role":"tool","toolCallId":"c","content":"r","error":"e"}]}`,
		`{"threadId":"t","runId":"r","messages":[],"resume":[{"interruptId":"i","status":"resolved","payload":true},{"interruptId":"i","status":"resolved","payload":"yes"},{"interruptId":"i","status":"cancelled"},{"interruptId":"i","status":"resolved","payload":{"decision":"approved","by":"ada"}},{"interruptId":"i","status":"resolved","payload":{"approved":false,"reason":"no"}},{"interruptId":"i","status":"resolved","payload":{"answer":"42"}}]}`,
		`{"messages":null}`, `[]`, "\xff",
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		in, err := parse(body)
		requireRefusal(t, err)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(in.ThreadID), maxThread)
		require.LessOrEqual(t, len(in.RunID), maxThread)
		require.Len(t, in.messages, len(in.Messages))
		require.Len(t, in.clientTools(), len(in.Tools))
		if kept := in.kept(); len(kept) > 0 {
			require.True(t, json.Valid(kept), "%s", kept)
		}
		for _, a := range in.answers {
			d, err := a.to(&events.Request{CallID: "c", Arguments: `{"amount":1}`})
			requireRefusal(t, err)
			require.False(t, err == nil && a.says != nil, "a text decides on a call")
			if err == nil && a.approves != nil {
				require.Equal(t, *a.approves, d.Decision == events.DecisionApproved)
			}
			_, err = a.to(&events.Request{CallID: "c", Arguments: `{"question":"Well?"}`, Asks: true})
			requireRefusal(t, err)
			require.False(t, err == nil && a.approves != nil, "a truth value answers a question")
		}
	})
}

// requireRefusal fails the test unless an error says what the client did wrong.
func requireRefusal(t *testing.T, err error) {
	t.Helper()
	if err != nil && route.RefusalOf(err).Kind >= refusal.Internal {
		require.NoError(t, err)
	}
}
