package mcpserve

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/moorebus/moorebus/internal/control/decisions"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
)

// stateless is the first version of the protocol in which a question is the result of a call,
// and the call is made again with the answer.
const stateless = "2026-07-28"

// maxAsked bounds the questions that one result has.
const maxAsked = 16

// The schemas of the answers.
var (
	decisionSchema = json.RawMessage(`{"type":"object","properties":{"decision":{"type":"string","enum":["approve","reject"]},"reason":{"type":"string","description":"Why; the agent is told if the call is rejected."}},"required":["decision"]}`)
	answerSchema   = json.RawMessage(`{"type":"object","properties":{"answer":{"type":"string"}},"required":["answer"]}`)
)

// caller is the client of one call, as far as it can be asked.
type caller struct {
	req *mcp.CallToolRequest
	// can says that the client has a user to ask.
	can bool
	// asked are the requests that the user has seen, by [keyOf].
	asked []string
	// stop ends the questions of an older client that nobody has answered.
	stop context.CancelFunc
}

func newCaller(req *mcp.CallToolRequest) *caller {
	c := &caller{req: req, stop: func() {}}
	if req.Session == nil { // a test
		return c
	}
	if has := req.ClientCapabilities(); has != nil && has.Elicitation != nil {
		c.can = has.Elicitation.Form != nil || has.Elicitation.URL == nil
	}
	return c
}

// again reports whether the client makes the call again to answer.
func (c *caller) again() bool { return c.req.ProtocolVersion() >= stateless }

// by names who decides, for the log.
func (c *caller) by() string {
	if info := c.req.ClientInfo(); info != nil && info.Name != "" {
		return "the user of the MCP client " + info.Name
	}
	return "the user of an MCP client"
}

// keyOf tells the questions of a run apart.
func keyOf(r events.Request) string {
	sum := sha256.Sum256([]byte(r.CallID + "\x00" + r.Reason))
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// asksError ends the following of a run with the questions for the client.
type asksError struct{ requests []events.Request }

func (*asksError) Error() string { return "the client has to be asked" }

// ask asks the client about the calls that wait for a human now. For a client that makes its
// call again it returns an [asksError].
func (s *Server) ask(ctx context.Context, c *caller, run events.Run) error {
	if !c.can {
		return nil
	}
	var requests []events.Request
	var agent string
	err := worker.Outlast(ctx, func(ctx context.Context) (err error) {
		requests, agent, err = s.waiting(ctx, run)
		return err
	}, nil)
	if err != nil {
		return err
	}
	requests = slices.DeleteFunc(requests, func(r events.Request) bool { return slices.Contains(c.asked, keyOf(r)) })
	if len(requests) == 0 {
		return nil
	}
	requests = requests[:min(len(requests), maxAsked)]
	for _, r := range requests {
		c.asked = append(c.asked, keyOf(r))
	}
	if c.again() {
		return &asksError{requests}
	}
	asking, stop := context.WithCancel(ctx)
	c.stop = stop
	s.calls.Go(func() {
		defer stop()
		for _, r := range requests {
			res, err := c.req.Session.Elicit(asking, question(agent, r))
			if asking.Err() != nil {
				return
			}
			if err != nil {
				s.o.Logger.Warn("an MCP client could not ask its user; the run waits", "run", run.ID, "call", r.CallID, "reason", err)
				return
			}
			s.decide(asking, c, run, r, res)
		}
	})
	return nil
}

// waiting returns the requests that wait for a human now.
func (s *Server) waiting(ctx context.Context, at events.Run) (requests []events.Request, agent string, err error) {
	run := s.o.Store.Acquire(at)
	defer s.o.Store.Release(run)
	run.Lock()
	defer run.Unlock()
	if err := run.Refresh(ctx); err != nil {
		return nil, "", err
	}
	mem := run.Memory()
	if mem.State != events.WaitingForHuman {
		return nil, "", nil
	}
	undecided := decisions.Undecided(mem.PendingApproval)
	for _, r := range mem.PendingApproval.Requests {
		if slices.Contains(undecided, r.CallID) {
			requests = append(requests, r)
		}
	}
	return requests, mem.Control.Agent.Name, nil
}

// question is what the client's user is asked.
func question(agent string, r events.Request) *mcp.ElicitParams {
	if r.Asks {
		return &mcp.ElicitParams{Mode: "form", Message: fmt.Sprintf("The agent %s asks: %s", agent, r.Reason), RequestedSchema: answerSchema}
	}
	return &mcp.ElicitParams{
		Mode: "form", RequestedSchema: decisionSchema,
		Message: fmt.Sprintf("The agent %s wants to call %s with %s. Risk: %s. %s", agent, r.Tool, r.Arguments, r.Risk, r.Reason),
	}
}

// decide records what the user said. To dismiss the question decides nothing.
func (s *Server) decide(ctx context.Context, c *caller, run events.Run, r events.Request, res *mcp.ElicitResult) {
	d := events.Decision{CallID: r.CallID, By: c.by()}
	text := func(key string) string { said, _ := res.Content[key].(string); return strings.TrimSpace(said) }
	switch {
	case res.Action == "decline":
		d.Decision, d.Reason = events.DecisionRejected, "the user declined"
	case res.Action != "accept":
		return
	case r.Asks:
		arguments, err := decisions.Answered(r.Arguments, text("answer"))
		if err != nil || text("answer") == "" {
			s.o.Logger.Warn("an MCP client's answer is of no use; the run waits", "run", run.ID, "call", r.CallID, "reason", err)
			return
		}
		d.Decision, d.Arguments = events.DecisionModified, arguments
	case text("decision") == "approve":
		d.Decision, d.Reason = events.DecisionApproved, text("reason")
	case text("decision") == "reject":
		d.Decision, d.Reason = events.DecisionRejected, text("reason")
	default:
		s.o.Logger.Warn("an MCP client decided neither approve nor reject; the run waits", "run", run.ID, "call", r.CallID)
		return
	}
	_, err := s.o.Control.Decide(ctx, run.Namespace, run.ID, d)
	if err != nil && !refusal.Is(err, refusal.CodeAlreadyDecided, refusal.CodeNotWaiting, refusal.CodeRunEnded) {
		s.o.Logger.Warn("an MCP client's decision was not accepted; the run waits", "run", run.ID, "call", r.CallID, "reason", err)
	}
}

// kept is what a client brings back with its answers.
type kept struct {
	Run   string   `json:"run"`
	Asked []string `json:"asked"`
}

// asks is the result of a call whose run waits for the client's user.
func (s *Server) asks(c *caller, run events.Run, requests []events.Request, agent string) *mcp.CallToolResult {
	res := &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{}}
	for _, r := range requests {
		res.InputRequests[keyOf(r)] = question(agent, r)
	}
	body, _ := json.Marshal(kept{run.ID, c.asked}) // texts alone
	res.RequestState = base64.RawURLEncoding.EncodeToString(append(s.seal(body), body...))
	return res
}

// seal returns the proof that this server wrote a state.
func (s *Server) seal(body []byte) []byte {
	mac := hmac.New(sha256.New, s.key)
	mac.Write(body)
	return mac.Sum(nil)
}

var errState = errors.New("requestState is not one of this server; call again without it")

// resume takes the answers that come with a call that is made again, and returns its run.
func (s *Server) resume(ctx context.Context, c *caller) (events.Run, error) {
	data, err := base64.RawURLEncoding.DecodeString(c.req.Params.RequestState)
	if err != nil || len(data) < sha256.Size || !hmac.Equal(data[:sha256.Size], s.seal(data[sha256.Size:])) {
		return events.Run{}, errState
	}
	var k kept
	if err := json.Unmarshal(data[sha256.Size:], &k); err != nil {
		return events.Run{}, errState
	}
	c.asked = k.Asked
	run := s.o.Store.Place(s.o.Namespace, k.Run)
	requests, _, err := s.waiting(ctx, run)
	if err != nil {
		return events.Run{}, err
	}
	for _, r := range requests {
		if res, ok := c.req.Params.InputResponses[keyOf(r)].(*mcp.ElicitResult); ok && res != nil {
			s.decide(ctx, c, run, r, res)
		}
	}
	return run, nil
}
