package webhooks

import (
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

var update = flag.Bool("update", false, "write the examples of docs/operations/webhooks.md anew")

const guide = "../../../docs/operations/webhooks.md"

// example is an event of a run that the guide has a notice of.
func example(from, to events.State, p events.Payload) *events.Event {
	return &events.Event{
		ID: "0198c5a0-7d10-7c00-8000-0000000000e7", Run: "0198c5a0-5a6b-7c00-8000-000000000001", N: 7, From: from, To: to,
		Time: time.Date(2026, 1, 2, 3, 4, 5, 600_000_000, time.UTC), Data: p,
	}
}

func examples() []*events.Event {
	outcome := func(code, message string) events.Outcome { return events.Outcome{Code: code, Message: message} }
	return []*events.Event{
		example(events.Planning, events.WaitingForHuman, &events.HumanApprovalRequired{
			Requests: []events.Request{{CallID: "call_1", Tool: "pay", Arguments: `{"amount":100}`, Risk: "high", Reason: "policy always"}}, Deadline: "2026-01-02T04:04:05Z",
		}),
		example(events.Planning, events.WaitingForUser, &events.LLMMessageComplete{Reply: events.Reply{Content: "Which of the two?"}}),
		example(events.Planning, events.Done, &events.LLMFinalAnswer{Reply: events.Reply{Content: "It is 42."}}),
		example(events.Planning, events.Errored, &events.MaxSteps{Outcome: outcome("max_steps", "max steps 40 exceeded")}),
		example(events.Acting, events.Cancelled, &events.CancelledRun{By: events.By{Reason: "It takes too long.", By: "ada"}}),
		example(events.Planning, events.Errored, &events.BudgetExceeded{Outcome: outcome("budget_cost", "the budget of $1 is used up: $0.98 used, the next call costs about $0.04")}),
		example(events.Acting, events.Errored, &events.FatalError{Outcome: outcome("stalled", "no answer since 2026-01-02T00:04:05Z to the delivery to planning, which was driven again 2 times")}),
	}
}

func ofExample(e *events.Event) Data {
	return Data{Namespace: "default", Webhook: "pager", Run: e.Run, Agent: "researcher", URL: "https://moorebus.example/runs/" + e.Run}
}

// The guide shows the notice of each type as it is posted.
func TestGuide(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(guide)
	require.NoError(t, err)
	const begin, end = "<!-- examples -->\n", "<!-- end of examples -->\n"
	before, rest, found := strings.Cut(string(data), begin)
	require.True(t, found)
	_, after, found := strings.Cut(rest, end)
	require.True(t, found)
	var b strings.Builder
	types := map[string]bool{}
	for _, e := range examples() {
		n, ok := newNotice(e, ofExample(e))
		require.True(t, ok)
		text, err := json.MarshalIndent(n, "", "  ")
		require.NoError(t, err)
		types[n.Type] = true
		b.WriteString("\n`" + n.Type + "`\n\n```json\n" + string(text) + "\n```\n")
	}
	require.Len(t, types, len(headlines)-1, "all but the test have an example")
	want := before + begin + b.String() + "\n" + end + after
	if *update {
		require.NoError(t, os.WriteFile(guide, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(data), "run: go test ./internal/feature/webhooks -run TestGuide -update")
	for typ := range headlines {
		require.Contains(t, before, "`"+typ+"`", "the table has every type")
	}
}

// Slack's form is a text without anything that Slack would read as markup or a mention.
func TestSlack(t *testing.T) {
	t.Parallel()
	texts := map[string]string{}
	for _, e := range examples() {
		n, _ := newNotice(e, ofExample(e))
		data, err := n.body(Slack)
		require.NoError(t, err)
		var body map[string]string
		require.NoError(t, json.Unmarshal(data, &body))
		require.Len(t, body, 1)
		texts[n.Type] = body["text"]
	}
	const link = " · researcher · <https://moorebus.example/runs/0198c5a0-5a6b-7c00-8000-000000000001|0198c5a0-5a6b-7c00-8000-000000000001>"
	require.Equal(t, "*A run waits for a person*"+link+"\n> pay {\"amount\":100}\nUntil 2026-01-02T04:04:05Z", texts[TypeWaitingForHuman])
	require.Equal(t, "*A run was cancelled*"+link+"\n> It takes too long. (ada)", texts[TypeCancelled])
	require.Equal(t, "*A run could not be processed*"+link+"\n> stalled: no answer since 2026-01-02T00:04:05Z to the delivery to planning, which was driven again 2 times", texts[TypeDead])

	e := example(events.Planning, events.Done, &events.LLMFinalAnswer{Reply: events.Reply{Content: "<!channel> a & b\n<https://evil.example|here>" + strings.Repeat("ü", 9000)}})
	n, _ := newNotice(e, ofExample(e))
	require.Contains(t, n.slack(), "\n> &lt;!channel&gt; a &amp; b\n> &lt;https://evil.example|here&gt;ü")
	require.Less(t, len(n.slack()), 4000)
	require.LessOrEqual(t, len(n.Data.Answer), maxText+len("…"))
}

// What only goes on in a state where a run waits is no news, and a fork that begins there is.
func TestOnlyNewsIsTold(t *testing.T) {
	t.Parallel()
	decided := example(events.WaitingForHuman, events.WaitingForHuman, &events.HumanDecision{})
	kind, _ := kindOf(decided)
	require.Empty(t, kind)
	resumed := example(events.WaitingForUser, events.WaitingForUser, &events.Resumed{})
	kind, _ = kindOf(resumed)
	require.Empty(t, kind)
	forked := example(events.Idle, events.WaitingForUser, &events.Forked{})
	forked.N = 1
	kind, _ = kindOf(forked)
	require.Equal(t, Waiting, kind)
	failed := example(events.Planning, events.Errored, &events.FatalError{Outcome: events.Outcome{Code: "auth"}})
	kind, _ = kindOf(failed)
	require.Equal(t, Failed, kind, "the model's fault")
}
