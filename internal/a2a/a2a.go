// Package a2a serves agents to programs that speak A2A 1.0, over its bindings HTTP+JSON and JSON-RPC.
//
// A task is a run, and its id the run's. A message without a task starts a run of the agent; the
// same message again finds that run. A task whose run waits for a human, for its user or for its
// client is in INPUT_REQUIRED, and a message to it is the answer. The context of a task is the
// one that its first message named, else the run itself.
//
// Streams are made of the log: what they send is a function of the run's events, so each can be
// resumed at any event. Pieces of text that a model is writing come between them.
package a2a

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/httpapi/sse"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Version is the version of the protocol.
const Version = "1.0"

const (
	versionHeader = "A2A-Version"
	cardPath      = "/.well-known/agent-card.json"
	rpcPath       = "/rpc" // of an agent's JSON-RPC
	mediaType     = "application/a2a+json"
	// requestTimeout bounds requests that do not wait for a run.
	requestTimeout = 30 * time.Second
)

// Config configures a [Face].
type Config struct {
	// Control carries out the requests, its Pushes included. Feed has live text. All required.
	Control *control.Controller
	Feed    journal.Feed
	// Agent is the stored agent whose card is at the well-known place. Empty: without a
	// token, the only agent of the default namespace.
	Agent string
	// Token says that requests need a bearer token. The card at the well-known place is
	// public all the same.
	Token bool
}

// Face answers the requests of A2A. It is safe for concurrent use.
type Face struct {
	cfg     Config
	streams *sse.Streams
}

// New returns a face of the gateway.
func New(cfg Config) *Face {
	f := &Face{cfg: cfg}
	cfg.Control.Pushes.SetUpdates(pushes{f})
	return f
}

var lastEvent = route.Parameter{Name: "Last-Event-ID", Description: "The number of the last event of the stream that the client has, to continue after it."}

var versionParameter = route.Parameter{Name: versionHeader, Description: "The version of the protocol. Default: " + Version + "."}

// Routes returns the requests.
func (f *Face) Routes(streams *sse.Streams) []route.Route {
	f.streams = streams
	const base = "/v1/a2a/{agent}"
	stream := []string{"text/event-stream"}
	task := slices.Concat(route.RunCodes, []string{refusal.CodeAgentNotFound, refusal.CodeTaskNotFound, refusal.CodeBadParameter, refusal.CodeNotFound})
	follow := slices.Concat(task, []string{refusal.CodeUnsupported, refusal.CodeTooManyStreams})
	send := slices.Concat(task, route.PinCodes, route.InputCodes, route.DecisionCodes, []string{
		refusal.CodeUnsupported, refusal.CodeContentType, codeBadPush,
	})
	const example = `{"message": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "What is 1+1?"}]}}`
	rows := []route.Route{
		{
			Pattern: "GET " + cardPath, Handle: f.getDefaultCard, Open: true, Answer: card{},
			Summary: "Returns the A2A card of the gateway's default agent.", Codes: []string{refusal.CodeAgentNotFound, refusal.CodeBadAgent},
		},
		{
			Pattern: "GET " + base + cardPath, Handle: f.getCard, Answer: card{},
			Summary: "Returns the A2A card of an agent.", Codes: []string{refusal.CodeBadNamespace, refusal.CodeAgentNotFound, refusal.CodeBadAgent},
		},
		{
			Pattern: "POST " + base + "/message:send", Handle: f.postSend, Body: sendRequest{}, Answer: sendResponse{}, Example: example,
			Summary: "Sends a message to an agent or a task, and waits until the task ends or needs input.", Codes: send,
		},
		{
			Pattern: "POST " + base + "/message:stream", Handle: f.postStream, Body: sendRequest{}, Streams: stream, Example: example,
			Summary: "Sends a message and streams the task until it ends or needs input.", Codes: append(send, refusal.CodeTooManyStreams),
		},
		{
			Pattern: "GET " + base + "/tasks", Handle: f.jsonAnswer(f.getTasks), Answer: taskList{}, Query: listParameters,
			Summary: "Lists tasks of an agent, the last updated first.", Codes: []string{refusal.CodeBadNamespace, refusal.CodeAgentNotFound, refusal.CodeBadRequest},
		},
		{
			Pattern: "GET " + base + "/tasks/{id}", Handle: f.getTask, Answer: task1{}, Streams: stream,
			Query:   []route.Parameter{{Name: historyLength, Description: "How many of the last messages to return. Default: 100."}},
			Headers: []route.Parameter{lastEvent},
			Summary: "Returns a task, or, with :subscribe after the id, streams it until it ends.", Codes: follow,
		},
		{
			Pattern: "POST " + base + "/tasks/{id}", Handle: f.postTask, Answer: task1{}, Streams: stream, Headers: []route.Parameter{lastEvent},
			Summary: "With :cancel after the id, cancels a task; with :subscribe, streams it until it ends.",
			Codes:   append(follow, refusal.CodeNotCancelable, refusal.CodeConflict, refusal.CodeMethodNotAllowed),
		},
	}
	push := base + "/tasks/{id}/pushNotificationConfigs"
	rows = append(rows, route.Route{
		Pattern: "POST " + push, Handle: f.postPush, Body: pushConfig{}, Answer: pushConfig{}, Example: `{"url": "https://client.example.org/tasks", "token": "s3cret"}`,
		Summary: "Has the updates of a task posted to a URL until it ends.", Codes: slices.Concat(task, []string{refusal.CodeUnsupported, codeBadPush, refusal.CodeConflict}),
	}, route.Route{
		Pattern: "GET " + push, Handle: f.jsonAnswer(f.getPushes), Answer: pushList{}, Summary: "Lists where the updates of a task are posted to.", Codes: task,
	}, route.Route{
		Pattern: "GET " + push + "/{config}", Handle: f.jsonAnswer(f.getPush), Answer: pushConfig{}, Summary: "Returns one of the places that the updates of a task are posted to.", Codes: task,
	}, route.Route{
		Pattern: "DELETE " + push + "/{config}", Handle: f.jsonAnswer(f.removePush), Answer: struct{}{}, Summary: "Has the updates of a task posted there no more.", Codes: task,
	})
	rows = append(rows, route.Route{
		Pattern: "GET " + base + "/extendedAgentCard", Handle: f.noExtendedCard, Summary: "Is refused: there is no extended card.", Refuses: true, Codes: []string{refusal.CodeUnsupported},
	})
	for i := range rows {
		rows[i].Failure = &route.Failure{Write: writeError, Body: failure{}, Media: errorMedia}
		if strings.HasSuffix(rows[i].Pattern, cardPath) {
			continue
		}
		if rows[i].Body != nil {
			rows[i].Bodies, rows[i].OpenBody = []string{mediaType}, true
		}
		rows[i].Media = mediaType
		rows[i].Handle = versioned(rows[i].Handle)
		rows[i].Codes = append(slices.Clone(rows[i].Codes), refusal.CodeVersionUnsupported)
		rows[i].Headers = append(rows[i].Headers, versionParameter)
	}
	return append(rows, route.Route{
		Pattern: "POST " + base + rpcPath, Handle: f.postRPC, Body: rpcRequest{}, OpenBody: true, Answer: rpcAnswer{}, Streams: stream, Headers: []route.Parameter{lastEvent, versionParameter},
		Example: `{"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "0190a6f0-0000-7000-8000-000000000000"}}`,
		Summary: "Carries out a request of A2A over JSON-RPC. Errors are answers with the status 200, but for a missing token and failures of the gateway.",
		Codes:   []string{refusal.CodeTooManyStreams},
		Failure: &route.Failure{Write: writeRPCError, Body: rpcAnswer{}, Media: errorMedia},
	})
}

// versioned refuses other versions of the protocol. A request without a version is taken as one
// of this version: clients of older ones use other paths.
func versioned(handle route.Endpoint) route.Endpoint {
	return func(w http.ResponseWriter, r *http.Request) error {
		if err := checkVersion(r); err != nil {
			return err
		}
		return handle(w, r)
	}
}

func checkVersion(r *http.Request) error {
	version := r.Header.Get(versionHeader)
	if version == "" {
		version = r.URL.Query().Get(versionHeader)
	}
	if version != "" && version != Version {
		return refusal.New(refusal.Invalid, refusal.CodeVersionUnsupported, "%s: %.20q is not supported; use %s", versionHeader, version, Version)
	}
	return nil
}

func (f *Face) getTasks(ctx context.Context, r *http.Request) (any, error) {
	return f.listTasks(ctx, r, parameters(r))
}

// jsonAnswer returns an endpoint that answers with JSON, within the time of a request.
func (f *Face) jsonAnswer(handle func(ctx context.Context, r *http.Request) (any, error)) route.Endpoint {
	return func(w http.ResponseWriter, r *http.Request) error {
		v, err := f.within(r, func(ctx context.Context) (any, error) { return handle(ctx, r) })
		if err != nil {
			return err
		}
		return write(w, http.StatusOK, mediaType, v)
	}
}

func write(w http.ResponseWriter, status int, media string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return refusal.Fault("answer: %w", err)
	}
	w.Header().Set("Content-Type", media)
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n')) // a client that is gone needs no error
	return nil
}

var errNoExtendedCard = refusal.New(refusal.Invalid, refusal.CodeUnsupported, "there is no extended card; the agent's card says everything")

func (f *Face) noExtendedCard(http.ResponseWriter, *http.Request) error { return errNoExtendedCard }
