// Command approvals has an agent that may pay nothing without being allowed to.
// It stops at each payment, shows it, and waits for a line on stdin:
//
//	approve
//	modify {"crowns": 5}
//	reject the reason
//
// What was modified is checked again, and what was rejected is told to the model
// with the reason. The wait is an event in the log: it may take days, and the
// process may be restarted meanwhile.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/moorebus/moorebus/internal/gateway"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

func main() {
	if err := run(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// definition is the agent: calls of a risk above medium wait.
func definition() *events.Agent {
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider, a.Tools = "cashier", "scripted", []string{"pay"}
	a.Approval = &events.Approval{Policy: events.ApproveAbove, Risk: "medium"}
	return &a
}

// model asks for three payments, whatever becomes of them.
func model() *scripted.Mock {
	return scripted.NewMock(
		scripted.Ask("pay", `{"crowns":10}`), scripted.Ask("pay", `{"crowns":1000}`), scripted.Ask("pay", `{"crowns":99999}`),
		scripted.Say("I paid what I was allowed to."),
	)
}

func run(ctx context.Context, in io.Reader, out io.Writer) error {
	s, err := start(ctx, model())
	if err != nil {
		return err
	}
	defer s.stop()
	started, err := s.host.Gateway().Start(ctx, "", gateway.StartRequest{Agent: definition(), Task: "Pay the three bills."})
	if err != nil {
		return err
	}
	at := s.host.Store().Place(events.DefaultNamespace, started.RunID)
	person := clerk{host: s.host, run: at, lines: bufio.NewScanner(in), out: out}
	for rec, err := range s.bus.Follow(ctx, at.Shard, journal.Filter{Namespace: at.Namespace, Run: at.ID}, 0) {
		if err != nil {
			return err
		}
		e, err := events.DefaultCodec().Decode(rec.Body)
		if err != nil {
			return err
		}
		if end, err := person.sees(ctx, e); end || err != nil {
			return err
		}
	}
	return ctx.Err()
}

// clerk decides as the lines say.
type clerk struct {
	host  *agent.Host
	run   events.Run
	lines *bufio.Scanner
	out   io.Writer
}

// sees shows an event, and decides where one is asked for; end is that of the run.
func (c *clerk) sees(ctx context.Context, e *events.Event) (end bool, err error) {
	switch p := e.Data.(type) {
	case *events.HumanApprovalRequired:
		request := p.Requests[0]
		if _, err = fmt.Fprintf(c.out, "%s(%s), risk %s? ", request.Tool, request.Arguments, request.Risk); err == nil {
			err = c.decide(ctx, request)
		}
	case *events.ToolSuccess:
		_, err = fmt.Fprintln(c.out, p.Outcome.Observation)
	case *events.HumanRejected:
		_, err = fmt.Fprintf(c.out, "rejected: %s\n", p.Reason)
	case *events.LLMFinalAnswer:
		_, err = fmt.Fprintln(c.out, p.Content)
		return true, err
	case *events.FatalError:
		return true, errors.New(p.Message)
	}
	return false, err
}

// decide takes lines until one is a decision that holds.
func (c *clerk) decide(ctx context.Context, request events.Request) error {
	for c.lines.Scan() {
		what, rest, _ := strings.Cut(strings.TrimSpace(c.lines.Text()), " ")
		d := events.Decision{CallID: request.CallID, By: "the clerk"}
		switch what {
		case "approve":
			d.Decision = events.DecisionApproved
		case "reject":
			d.Decision, d.Reason = events.DecisionRejected, rest
		case "modify":
			d.Decision, d.Arguments = events.DecisionModified, rest
		}
		_, err := c.host.Gateway().Decide(ctx, "", c.run.ID, d)
		var refused *gateway.Error
		if !errors.As(err, &refused) {
			return err
		}
		if _, err := fmt.Fprintf(c.out, "\n%s\napprove, modify JSON or reject REASON? ", refused.Message); err != nil {
			return err
		}
	}
	return errors.New("nobody is left to decide")
}
