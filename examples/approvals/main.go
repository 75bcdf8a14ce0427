// Command approvals has an agent that needs permission for each payment. It stops at
// each payment, shows it, and waits for a line on stdin:
//
//	approve
//	modify {"crowns": 5}
//	reject the reason
//
// Modified arguments are checked again. The model is told about a rejection, with the
// reason. The wait is an event in the log: it may take days, and the process may restart
// meanwhile.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

func main() {
	if err := run(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type payment struct {
	Crowns int `json:"crowns" jsonschema:"how much to pay"`
}

func pay(_ context.Context, in payment) (string, error) {
	return fmt.Sprintf("paid %d crowns", in.Crowns), nil
}

// cashier is the agent: calls with a risk above medium wait. Its model asks for three
// payments, whatever their outcome.
func cashier() (*agent.Agent, error) {
	model := scripted.NewMock(
		scripted.Ask("pay", `{"crowns":10}`), scripted.Ask("pay", `{"crowns":1000}`), scripted.Ask("pay", `{"crowns":99999}`),
		scripted.Say("I paid what I was allowed to."),
	)
	return agent.New("cashier").
		LLM(model).
		Tool(agent.Func("pay", "Pays an amount in crowns.", pay, agent.Risk(tool.High))).
		Approval(events.Approval{Policy: events.ApproveAbove, Risk: "medium"}).
		Build()
}

func run(ctx context.Context, in io.Reader, out io.Writer) error {
	a, err := cashier()
	if err != nil {
		return err
	}
	r, err := a.Start(ctx, agent.Task("Pay the three bills."))
	if err != nil {
		return err
	}
	defer func() { _ = r.Release() }()
	lines, shown := bufio.NewScanner(in), 0
	for call := range r.Approvals(ctx) {
		trace := r.Trace()
		show(out, trace[shown:])
		shown = len(trace)
		if err := decide(ctx, call, lines, out); err != nil {
			return err
		}
	}
	_, err = r.Wait(ctx)
	show(out, r.Trace()[shown:])
	return err
}

// show prints the outcome of the payments, and the answer.
func show(out io.Writer, happened reducer.Trace) {
	for _, entry := range happened {
		switch events.Type(entry.Event) {
		case events.TypeToolSuccess, events.TypeHumanRejected, events.TypeLLMFinalAnswer:
			_, _ = fmt.Fprintln(out, entry.Data)
		}
	}
}

// decide reads lines until one is a valid decision.
func decide(ctx context.Context, call agent.Approval, lines *bufio.Scanner, out io.Writer) error {
	ask := fmt.Sprintf("%s(%s), risk %s? ", call.Tool, call.Arguments, call.Risk)
	for {
		if _, err := io.WriteString(out, ask); err != nil {
			return err
		}
		if !lines.Scan() {
			return errors.New("nobody is left to decide")
		}
		what, rest, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		d := events.Decision{By: "the clerk"}
		switch what {
		case "approve":
			d.Decision = events.DecisionApproved
		case "reject":
			d.Decision, d.Reason = events.DecisionRejected, rest
		case "modify":
			d.Decision, d.Arguments = events.DecisionModified, rest
		}
		err := call.Decide(ctx, d)
		refused, is := errors.AsType[*agent.Refused](err)
		if !is {
			return err
		}
		ask = fmt.Sprintf("\n%s\napprove, modify JSON or reject REASON? ", refused.Message)
	}
}
