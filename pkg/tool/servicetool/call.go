package servicetool

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/truncate"
	"github.com/moorebus/moorebus/pkg/tool"
)

// The headers of requests and replies.
const (
	headerKey   = "Idempotency-Key"
	headerRun   = "Moorebus-Run"
	headerCall  = "Moorebus-Call"
	headerTrace = "traceparent"
	headerError = "Nats-Service-Error"
	headerCode  = "Nats-Service-Error-Code"
	headerType  = "Content-Type"
)

// codeUnavailable is the code of a call that nobody served. codeAmbiguous is the code of a call
// of a tool that several services have.
const (
	codeUnavailable = "unavailable"
	codeAmbiguous   = "ambiguous_tool"
)

const (
	// maxResult and maxError bound what is taken of a reply.
	maxResult = 8 << 20
	maxError  = 16 << 10
	// replyTime is the part of a call's time that is left for the error when nobody
	// served it.
	replyTime = 500 * time.Millisecond
	// longest is longer than any call: its context bounds it.
	longest = 24 * time.Hour
)

// unserved says when a request that nobody served is sent again.
var unserved = retry.Policy{First: 50 * time.Millisecond, Factor: 2, Max: time.Second}

// remote is a tool of a service.
type remote struct {
	source  *services
	def     tool.Definition
	subject string
	// unclear says that several services have the tool, and that it is not known which of
	// them runs mean.
	unclear bool
}

func (r *remote) Definition() tool.Definition { return r.def }

// Run sends the request and returns the reply.
func (r *remote) Run(ctx context.Context, call tool.Call) (string, error) {
	if r.unclear {
		f := tool.Failf(codeAmbiguous, "the tool %q was not called: the services %s have it", call.Name, strings.Join(r.def.Services, ", "))
		f.NotSent = true
		return "", f
	}
	r.source.mu.Lock()
	client := r.source.client
	r.source.mu.Unlock()
	policy := unserved
	policy.Budget = min(r.source.opts.Patience, patience(ctx))
	var reply *nats.Msg
	var failed error
	_ = policy.Do(ctx, func(ctx context.Context) error { // the last failure says more than the end of a pause
		reply, failed = r.request(ctx, client, call)
		if f := (*tool.Failure)(nil); errors.As(failed, &f) && f.Code == codeUnavailable {
			return failed
		}
		return retry.Stop(failed)
	}, nil)
	if failed != nil {
		return "", failed
	}
	return result(ctx, reply)
}

// patience returns how long the call may be sent again: the time that it has, less the time
// to return an error.
func patience(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return longest
	}
	left := time.Until(deadline)
	return max(left-replyTime, left/2)
}

// request sends the call once.
func (r *remote) request(ctx context.Context, client *api.Client, call tool.Call) (*nats.Msg, error) {
	if !client.NC.IsConnected() {
		return nil, unavailable("the connection to the bus is broken")
	}
	arguments := call.Arguments
	if arguments == "" {
		arguments = "{}"
	}
	header := nats.Header{headerKey: {call.IdempotencyKey()}, headerRun: {call.Run}, headerCall: {call.ID}}
	if call.TraceParent != "" {
		header.Set(headerTrace, call.TraceParent)
	}
	reply, err := exchange(ctx, client, &nats.Msg{Subject: r.subject, Data: []byte(arguments), Header: header, Reply: newReply(client.NC)})
	return reply, r.failure(ctx, err)
}

// newReply returns a subject for answers of services that nobody can guess.
func newReply(conn *nats.Conn) string {
	inboxes := cmp.Or(conn.Opts.InboxPrefix, strings.TrimSuffix(nats.InboxPrefix, "."))
	return api.ServiceReplies + inboxes + "." + rand.Text()
}

// exchange sends a request and waits for the one answer. It fails at once if the server
// refuses the subject or the connection breaks.
func exchange(ctx context.Context, client *api.Client, msg *nats.Msg) (*nats.Msg, error) {
	answers, failed := make(chan *nats.Msg, 1), make(chan error, 1)
	sub, err := client.NC.ChanSubscribe(msg.Reply, answers)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }() // it fails only if the connection is closed
	defer client.OnFailed(func(subject string) bool { return subject == msg.Subject }, func(err error) {
		select {
		case failed <- err:
		default: // there is a reason already
		}
	})()
	if err := client.NC.PublishMsg(msg); err != nil {
		return nil, err
	}
	select {
	case reply := <-answers:
		if len(reply.Data) == 0 && reply.Header.Get("Status") == "503" {
			return nil, nats.ErrNoResponders
		}
		return reply, nil
	case err := <-failed:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// failure classifies the errors of requests.
func (r *remote) failure(ctx context.Context, err error) error {
	var denied *api.DeniedError
	name := strings.Join(r.def.Services, ", ")
	f := tool.Failf(tool.CodeUnreachable, "the service %s: %v", name, err)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("the call was stopped: %w", ctx.Err())
	case errors.Is(err, nats.ErrNoResponders):
		return unavailable("no instance of the service " + name + " is there")
	case errors.As(err, &denied):
		f.Message, f.NotSent = "the actor's user may not send requests to the service "+name+": "+denied.Error(), true
	case errors.Is(err, nats.ErrMaxPayload):
		f.Code, f.Message, f.NotSent = tool.CodeInvalidArguments, "the arguments are larger than a message of the bus may be", true
	}
	return f
}

// unavailable is the failure of a call that nobody served.
func unavailable(why string) error {
	f := tool.Failf(codeUnavailable, "%s", why)
	f.NotSent, f.Passing = true, true
	return f
}

// result returns a reply's result or failure.
func result(ctx context.Context, reply *nats.Msg) (string, error) {
	code, said := reply.Header.Get(headerCode), reply.Header.Get(headerError)
	if code == "" && said == "" {
		if len(reply.Data) > maxResult {
			return truncate.Result(string(reply.Data[:maxResult+1]), maxResult, int64(len(reply.Data))), nil
		}
		return callctx.Text(ctx, reply.Header.Get(headerType), string(reply.Data)), nil
	}
	if body := strings.TrimSpace(string(reply.Data)); body != "" {
		said += ": " + truncate.Result(body, maxError, int64(len(body)))
	}
	f := tool.Failf(failureCode(code), "%s", strings.TrimPrefix(said, ": "))
	if f.Message == "" {
		f.Message = "the service failed with code " + code + " and without saying why"
	}
	f.Passing = code == "429" || len(code) == 3 && code[0] == '5'
	return "", f
}

// failureCode returns the code of a service's error.
func failureCode(code string) string {
	if code == "" {
		return "service_error"
	}
	return "service_" + truncate.Prefix(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '_':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '_'
	}, code), maxCode)
}

// maxCode bounds a service's own part of a code.
const maxCode = 64
