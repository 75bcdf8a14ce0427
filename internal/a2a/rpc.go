package a2a

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
)

// rpcRequest is a request of the JSON-RPC binding.
type rpcRequest struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty" jsonschema:"A text or a number, which the answer has too."`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params,omitempty" jsonschema:"The body, path and query of the request over HTTP+JSON, as one object."`
}

// rpcAnswer is the answer to a request, or one event of a stream.
type rpcAnswer struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  any             `json:"result,omitempty"`
	Error   *rpcFailure     `json:"error,omitempty"`
}

type rpcFailure struct {
	Code    int         `json:"code"`
	Message string      `json:"message"`
	Data    []errorInfo `json:"data"`
}

// The codes of JSON-RPC. rpcCodes are those of the protocol.
const (
	rpcParse     = -32700
	rpcRequested = -32600
	rpcMethod    = -32601
	rpcParams    = -32602
	rpcInternal  = -32603
)

var rpcCodes = map[string]int{
	refusal.CodeTaskNotFound: -32001, refusal.CodeRunNotFound: -32001, refusal.CodeRunPurged: -32001, refusal.CodeNotCancelable: -32002,
	refusal.CodeUnsupported: -32004, refusal.CodeContentType: -32005, refusal.CodeVersionUnsupported: -32009,
}

// coded is a refusal that has a code of JSON-RPC itself.
type coded struct {
	error
	code int
}

func (c coded) Unwrap() error { return c.error }

func rpcRefusal(code int, format string, args ...any) error {
	return coded{badRequest(format, args...), code}
}

// codeOf is the JSON-RPC code of a refusal. A request may succeed later if the gateway is to blame.
func codeOf(err error, e *refusal.Error) int {
	var own coded
	if errors.As(err, &own) {
		return own.code
	}
	if code, own := rpcCodes[e.Code]; own {
		return code
	}
	switch e.Kind {
	case refusal.TooMany, refusal.Internal, refusal.Unavailable:
		return rpcInternal
	}
	return rpcParams
}

func rpcError(id json.RawMessage, e *refusal.Error, code int) rpcAnswer {
	if len(id) == 0 {
		id = json.RawMessage("null")
	}
	return rpcAnswer{JSONRPC: "2.0", ID: id, Error: &rpcFailure{Code: code, Message: e.Message, Data: []errorInfo{infoOf(e)}}}
}

// writeRPCError answers a request that was refused before it was read.
func writeRPCError(w http.ResponseWriter, e *refusal.Error, status int) {
	_ = write(w, status, errorMedia, rpcError(nil, e, codeOf(e, e))) // it holds nothing that JSON cannot
}

// postRPC answers a request of the JSON-RPC binding. Errors are answers with the status 200, as
// that binding has it.
func (f *Face) postRPC(w http.ResponseWriter, r *http.Request) error {
	data, err := (&route.Request{Request: r, W: w}).Body()
	if err != nil {
		return err
	}
	var req rpcRequest
	var result any
	if err = json.Unmarshal(data, &req); err != nil || !utf8.Valid(data) {
		err = rpcRefusal(rpcParse, "the body is not one JSON-RPC request")
	} else {
		result, err = f.invoke(w, r, &req)
	}
	if err != nil {
		e := route.RefusalOf(err)
		if e.Kind >= refusal.Internal {
			return err // it is logged, and the status says that it can pass
		}
		return write(w, http.StatusOK, errorMedia, rpcError(req.ID, e, codeOf(err, e)))
	}
	if result == nil {
		return nil // it was streamed
	}
	return write(w, http.StatusOK, errorMedia, rpcAnswer{JSONRPC: "2.0", ID: req.ID, Result: result})
}

// check refuses what is not a request, with what clients of the binding expect.
func (req *rpcRequest) check() error {
	id := bytes.TrimSpace(req.ID)
	bad := func(format string, args ...any) error { return rpcRefusal(rpcRequested, format, args...) }
	switch {
	case req.JSONRPC != "2.0":
		return bad("jsonrpc: %.20q is not 2.0", req.JSONRPC)
	case len(id) == 0 || id[0] == '{' || id[0] == '[' || id[0] == 't' || id[0] == 'f':
		req.ID = nil
		return bad("id: must be a text or a number")
	case req.Method == "":
		return bad("method: is missing")
	}
	return nil
}

// named are the parameters of methods about one task.
type named struct {
	Tenant  string `json:"tenant"`
	ID      string `json:"id"`
	History *int   `json:"historyLength"`
}

// invoke carries out a request. A nil result was streamed.
func (f *Face) invoke(w http.ResponseWriter, r *http.Request, req *rpcRequest) (any, error) {
	if err := req.check(); err != nil {
		return nil, err
	}
	if err := checkVersion(r); err != nil {
		return nil, err
	}
	wrap := func(u update) any { return rpcAnswer{JSONRPC: "2.0", ID: req.ID, Result: u} }
	switch req.Method {
	case "SendMessage":
		return f.sendMessage(r, req.Params)
	case "SendStreamingMessage":
		return nil, f.streamMessage(w, r, req.Params, wrap)
	case "ListTasks":
		values, err := req.values()
		if err != nil {
			return nil, err
		}
		return f.within(r, func(ctx context.Context) (any, error) { return f.listTasks(ctx, r, values) })
	case "GetExtendedAgentCard":
		return nil, errNoExtendedCard
	case "CreateTaskPushNotificationConfig", "GetTaskPushNotificationConfig", "ListTaskPushNotificationConfigs", "DeleteTaskPushNotificationConfig":
		return f.within(r, func(ctx context.Context) (any, error) { return f.invokePush(ctx, r, req) })
	}
	about := map[string]func(ctx context.Context, n named) (any, error){
		"GetTask": func(ctx context.Context, n named) (any, error) {
			if n.History != nil && *n.History < 0 {
				return nil, badRequest("params.historyLength: must not be negative")
			}
			return f.whole(ctx, targetOf(r, n.ID), n.History)
		},
		"CancelTask": func(ctx context.Context, n named) (any, error) {
			return f.cancel(ctx, targetOf(r, n.ID))
		},
		"SubscribeToTask": func(_ context.Context, n named) (any, error) { return nil, f.subscribe(w, r, n.ID, wrap) },
	}
	method, known := about[req.Method]
	if !known {
		return nil, rpcRefusal(rpcMethod, "method: there is no %.100q", req.Method)
	}
	var n named
	if err := req.decode(&n); err != nil {
		return nil, err
	}
	if n.Tenant != "" || n.ID == "" {
		return nil, badRequest("params: must have an id and no tenant; the header Moorebus-Namespace names the namespace")
	}
	if req.Method == "SubscribeToTask" {
		return method(r.Context(), n)
	}
	return f.within(r, func(ctx context.Context) (any, error) { return method(ctx, n) })
}

// decode reads the parameters. Keys that are not known are ignored.
func (req *rpcRequest) decode(into any) error {
	if err := json.Unmarshal(req.Params, into); err != nil {
		return badRequest("params: %s", err.Error())
	}
	return nil
}

// values returns parameters as the query of HTTP+JSON has them.
func (req *rpcRequest) values() (map[string]string, error) {
	var all map[string]json.RawMessage
	if len(req.Params) > 0 {
		if err := req.decode(&all); err != nil {
			return nil, err
		}
	}
	values := map[string]string{}
	for key, value := range all {
		text := strings.TrimSpace(string(value))
		if text == "null" {
			continue
		}
		if strings.HasPrefix(text, `"`) {
			if err := json.Unmarshal(value, &text); err != nil {
				return nil, badRequest("params.%s: %s", key, err.Error())
			}
		}
		values[key] = text
	}
	if values["tenant"] != "" {
		return nil, badRequest("params.tenant: is not supported; the header Moorebus-Namespace names the namespace")
	}
	return values, nil
}

// within carries out a request that does not wait for a run.
func (f *Face) within(r *http.Request, handle func(ctx context.Context) (any, error)) (v any, err error) {
	ctx, stop := context.WithTimeout(r.Context(), requestTimeout)
	defer stop()
	err = f.cfg.Control.WhileQuorum(ctx, func(ctx context.Context) error {
		v, err = handle(ctx)
		return err
	})
	return v, err
}
