package agui

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

// Only what plainly approves a call approves it, and only a text answers a question.
func TestAnswers(t *testing.T) {
	approval := &events.Request{CallID: "c", Arguments: `{"amount":3}`}
	question := &events.Request{CallID: "c", Arguments: `{"question":"Which?"}`, Asks: true}
	const refused = ""
	for _, test := range []struct{ payload, approval, question string }{
		{`true`, events.DecisionApproved, refused},
		{`false`, events.DecisionRejected, refused},
		{`{"approved":true}`, events.DecisionApproved, refused},
		{`{"approved":false,"reason":"no","by":"Ann"}`, events.DecisionRejected, refused},
		{`"blue"`, refused, events.DecisionModified},
		{`"true"`, refused, events.DecisionModified},
		{`{"answer":"blue"}`, refused, events.DecisionModified},
		{`{"decision":"approved"}`, events.DecisionApproved, events.DecisionApproved}, // refused later: answer_needed
		{`{"decision":"rejected","reason":"no"}`, events.DecisionRejected, events.DecisionRejected},
		{`{"decision":"modified","arguments":{"a":1}}`, events.DecisionModified, events.DecisionModified},
		{`{"approved":"true"}`, refused, refused},
		{`{"approved":1}`, refused, refused},
		{`{"approved":null}`, refused, refused},
		{`{"approved":true,"approved":false}`, refused, refused},
		{`{"approved":true,"decision":"rejected"}`, refused, refused},
		{`{"approved":true,"answer":"x"}`, refused, refused},
		{`{"Approved":true}`, refused, refused},
		{`{"approved":true,"arguments":{}}`, refused, refused},
		{`{"answer":true}`, refused, refused},
		{`{"answer":"x","decision":"approved"}`, refused, refused},
		{`{"decision":"approved","call_id":"other"}`, refused, refused},
		{`{}`, refused, refused},
		{`1`, refused, refused},
		{`[true]`, refused, refused},
		{`null`, refused, refused},
		{``, refused, refused},
	} {
		r := Resume{InterruptID: "c", Status: "resolved", Payload: json.RawMessage(test.payload)}
		for wanted, request := range map[*string]*events.Request{&test.approval: approval, &test.question: question} {
			a, err := r.read()
			var d events.Decision
			if err == nil {
				d, err = a.to(request)
			}
			if *wanted == refused {
				require.Error(t, err, test.payload)
				continue
			}
			require.NoError(t, err, test.payload)
			require.Equal(t, *wanted, d.Decision, test.payload)
			require.Equal(t, "c", d.CallID)
			require.NotEmpty(t, d.By)
		}
	}
	a, err := (&Resume{InterruptID: "c", Status: "resolved", Payload: json.RawMessage(`"blue"`)}).read()
	require.NoError(t, err)
	d, err := a.to(question)
	require.NoError(t, err)
	require.JSONEq(t, `{"question":"Which?","answer":"blue"}`, d.Arguments)
}
