package webhooks

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/control/dead"
	"github.com/moorebus/moorebus/internal/truncate"
	"github.com/moorebus/moorebus/pkg/events"
)

// The types of notices.
const (
	TypeWaitingForHuman = "run.waiting_for_human"
	TypeWaitingForUser  = "run.waiting_for_user"
	TypeEnded           = "run.ended"
	TypeFailed          = "run.failed"
	TypeCancelled       = "run.cancelled"
	TypeBudget          = "run.budget_exceeded"
	TypeDead            = "run.dead"
	TypeTest            = "webhook.test"
)

const (
	// maxText bounds each text of a notice, in bytes, maxRequests the calls that it lists.
	maxText     = 4 << 10
	maxRequests = 20
	// maxSlack bounds the quoted texts of Slack's form: there is room for 4,000 characters.
	maxSlack = 1 << 10
)

// Notice is what a webhook posts.
type Notice struct {
	Type      string `json:"type"`
	Timestamp string `json:"timestamp"`
	Data      Data   `json:"data"`
}

// Data says what happened in a run. Everything in it is of the log up to that event, so a notice is
// the same whenever it is made.
type Data struct {
	Namespace string `json:"namespace"`
	Webhook   string `json:"webhook"`
	Run       string `json:"run_id,omitempty"`
	// Agent is the one that the run began with.
	Agent string `json:"agent,omitempty"`
	// Parent is the run whose call the run answers.
	Parent string `json:"parent,omitempty"`
	// N and Event are the event's number and type.
	N     uint64       `json:"n,omitempty"`
	Event events.Type  `json:"event,omitempty"`
	State events.State `json:"state,omitempty"`
	// URL is the run's page in the console.
	URL string `json:"url,omitempty"`
	// Requests are the calls that wait for a person, until Deadline.
	Requests []events.Request `json:"requests,omitempty"`
	Deadline string           `json:"deadline,omitempty"`
	// Message is what the model said last, Answer how the run ended.
	Message string `json:"message,omitempty"`
	Answer  string `json:"answer,omitempty"`
	// Code and Error say why the run ended.
	Code  string `json:"code,omitempty"`
	Error string `json:"error,omitempty"`
	// Reason and By are of who ended the run.
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"`
}

// kindOf returns what an event is to a person, and the type of its notice; "": nothing.
func kindOf(e *events.Event) (kind Kind, typ string) {
	if e.From == e.To && e.N != 1 {
		return "", ""
	}
	switch e.To {
	case events.WaitingForHuman:
		return Waiting, TypeWaitingForHuman
	case events.WaitingForUser:
		return Waiting, TypeWaitingForUser
	case events.Done:
		return Ended, TypeEnded
	case events.Cancelled:
		return Cancelled, TypeCancelled
	case events.Errored:
	default:
		return "", ""
	}
	switch p := e.Data.(type) {
	case *events.BudgetExceeded:
		return Budget, TypeBudget
	case *events.FatalError:
		if dead.BySystem(p.Code) {
			return Dead, TypeDead
		}
	}
	return Failed, TypeFailed
}

func short(text string) string {
	if len(text) <= maxText {
		return text
	}
	return truncate.Prefix(text, maxText) + "…"
}

// newNotice returns the notice of an event, or false if it is of no kind.
func newNotice(e *events.Event, data Data) (Notice, bool) {
	_, typ := kindOf(e)
	data.N, data.Event, data.State = e.N, e.Type(), e.To
	switch p := e.Data.(type) {
	case *events.HumanApprovalRequired:
		for _, r := range p.Requests[:min(len(p.Requests), maxRequests)] {
			r.Arguments, r.Reason = short(r.Arguments), short(r.Reason)
			data.Requests = append(data.Requests, r)
		}
		data.Deadline = p.Deadline
	case *events.LLMMessageComplete:
		data.Message = short(p.Content)
	case *events.LLMFinalAnswer:
		data.Answer = short(p.Content)
	case *events.Closed:
		data.Reason, data.By = short(p.Reason), p.By.By
	case *events.CancelledRun:
		data.Reason, data.By = short(p.Reason), p.By.By
	case *events.MaxSteps:
		data.Code, data.Error = p.Code, short(p.Message)
	case *events.BudgetExceeded:
		data.Code, data.Error = p.Code, short(p.Message)
	case *events.FatalError:
		data.Code, data.Error = p.Code, short(p.Message)
	}
	return Notice{Type: typ, Timestamp: e.Time.UTC().Format(time.RFC3339Nano), Data: data}, typ != ""
}

// body returns what is posted in a form.
func (n *Notice) body(form Form) ([]byte, error) {
	if form != Slack {
		return json.Marshal(n)
	}
	return json.Marshal(map[string]string{"text": n.slack()})
}

// slackEscape replaces what Slack gives a meaning.
var slackEscape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// headlines begin Slack's texts.
var headlines = map[string]string{
	TypeWaitingForHuman: "A run waits for a person",
	TypeWaitingForUser:  "A run waits for its user's message",
	TypeEnded:           "A run has ended",
	TypeFailed:          "A run has failed",
	TypeCancelled:       "A run was cancelled",
	TypeBudget:          "A run has used up its budget",
	TypeDead:            "A run could not be processed",
	TypeTest:            "A test of the webhook",
}

// slack returns the notice as a text for Slack.
func (n *Notice) slack() string {
	d := &n.Data
	var b strings.Builder
	fmt.Fprintf(&b, "*%s*", headlines[n.Type])
	if d.Agent != "" {
		b.WriteString(" · " + slackEscape.Replace(d.Agent))
	}
	switch {
	case d.Run == "":
		b.WriteString(" " + slackEscape.Replace(d.Webhook))
	case d.URL != "":
		fmt.Fprintf(&b, " · <%s|%s>", slackEscape.Replace(d.URL), d.Run)
	default:
		b.WriteString(" · " + d.Run)
	}
	quote := func(label, text string) {
		if text = truncate.Prefix(strings.TrimSpace(text), maxSlack); text != "" {
			b.WriteString("\n" + label + strings.ReplaceAll(slackEscape.Replace(text), "\n", "\n> "))
		}
	}
	for i, r := range d.Requests {
		if i == 3 {
			fmt.Fprintf(&b, "\n> … and %d more", len(d.Requests)-i)
			break
		}
		what := r.Tool + " " + r.Arguments
		if r.Asks {
			what = r.Reason
		}
		quote("> ", what)
	}
	quote("Until ", d.Deadline)
	quote("> ", d.Message+d.Answer)
	if d.Code != "" {
		quote("> ", d.Code+": "+d.Error)
	}
	if d.By != "" || d.Reason != "" {
		quote("> ", strings.TrimSpace(d.Reason+" ("+d.By+")"))
	}
	return b.String()
}
