package planner

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/clientmodel"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// RequestsConfig configures [Requests].
type RequestsConfig struct {
	// Store has the runs, Blobs what the log refers to. Store is required.
	Store *runlog.Store
	Blobs journal.Blobs
	// Text is that of [Config].
	Text func(llm.Caller) llm.Caller
	// Chat writes requests to models without an API. Required.
	Chat llm.Writer
	// Providers are the callers that this process has. A request to another one is asked of
	// a planner that has it, by Questions; without any Plain's writers of that API do, of which
	// the one counts that writes what the log says was sent.
	Providers map[string]llm.Caller
	Questions ports.Questions
	Plain     func(dialect string) []llm.Writer
	// NoStream says that the planners request complete replies.
	NoStream bool
	Logger   *slog.Logger
}

// Requests writes the requests to models that led to replies in the log, and those whose reply
// is awaited. A request follows from the log up to the reply, so nothing is stored for it. It
// is safe for concurrent use.
type Requests struct {
	cfg RequestsConfig
	p   *Planner
}

// NewRequests returns Requests.
func NewRequests(cfg RequestsConfig) *Requests {
	p := &Planner{cfg: Config{Blobs: cfg.Blobs, Text: cfg.Text, Providers: cfg.Providers}}
	if p.cfg.Logger = cfg.Logger; p.cfg.Logger == nil {
		p.cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Requests{cfg: cfg, p: p}
}

// Tokens estimates the size of the request that a run asks its model next, in tokens, without
// what lies in the object store.
func (r *Requests) Tokens(mem *reducer.Memory) int {
	ref, _ := effects.Model(mem, reducer.Attempt{})
	return estimate(tokens.ByBytes4, request(mem, ref))
}

// Of returns the request whose reply is event n, or with n 0 the one whose reply is awaited.
// The error is clientmodel.ErrNoRequest or clientmodel.ErrNothingPending if there is none.
func (r *Requests) Of(ctx context.Context, run events.Run, n uint64) (clientmodel.ModelRequest, error) {
	if n == 0 {
		return r.pending(ctx, run)
	}
	mem, facts, err := r.before(ctx, run, n)
	if err != nil {
		return clientmodel.ModelRequest{}, err
	}
	w, err := r.plan(mem, facts)
	if err != nil {
		return clientmodel.ModelRequest{}, err
	}
	req, err := r.write(ctx, run, n, w, facts)
	if err != nil {
		return req, err
	}
	sum := sha256.Sum256(req.Body)
	exact := facts.RequestSHA256 != "" && hex.EncodeToString(sum[:]) == facts.RequestSHA256
	req.Key, req.N, req.Exact = "", n-1, &exact
	return req, nil
}

// pending returns the request whose reply is awaited.
func (r *Requests) pending(ctx context.Context, at events.Run) (clientmodel.ModelRequest, error) {
	run := r.cfg.Store.Acquire(at)
	defer r.cfg.Store.Release(run)
	w, pending, err := func() (wanted, clientmodel.Request, error) {
		run.Lock()
		defer run.Unlock()
		if err := run.Refresh(ctx); err != nil {
			return wanted{}, clientmodel.Request{}, err
		}
		pending, waits := clientmodel.Pending(r.cfg.Store.Machine().Table(), run.Memory())
		if !waits {
			return wanted{}, pending, clientmodel.ErrNothingPending
		}
		w, err := r.plan(run.Memory(), nil)
		return w, pending, err
	}()
	if err != nil {
		return clientmodel.ModelRequest{}, err
	}
	req, err := r.write(ctx, at, 0, w, nil)
	req.Key, req.N = pending.Key, pending.N
	return req, err
}

// before returns the memory in which the model was asked whose reply is event n, and what the
// event holds of the reply.
func (r *Requests) before(ctx context.Context, run events.Run, n uint64) (*reducer.Memory, *events.Facts, error) {
	var seen []*events.Event // the event of each record up to n, nil for one that cannot be decoded
	for rec, err := range r.cfg.Store.Log().Read(ctx, run, 0) {
		if err != nil {
			return nil, nil, err
		}
		if _, err := events.ParseSubject(rec.Subject); err != nil {
			continue // it belongs to no run
		}
		e, _ := r.cfg.Store.Machine().Codec().Decode(rec.Body)
		if seen = append(seen, e); uint64(len(seen)) == n {
			break
		}
	}
	if uint64(len(seen)) < n || seen[n-1] == nil {
		return nil, nil, clientmodel.ErrNoRequest
	}
	facts := replyOf(seen[n-1])
	if facts == nil {
		return nil, nil, clientmodel.ErrNoRequest
	}
	at := n - 1
	for at > 0 && seen[at-1] != nil {
		part := events.ReplyOf(seen[at-1].Data)
		if part == nil || !part.Part {
			break
		}
		at-- // it is of the same reply
	}
	fold, err := runlog.FoldAt(ctx, r.cfg.Store.Log(), r.cfg.Store.Machine(), run, at)
	if err != nil {
		return nil, nil, err
	}
	armed, kept := armedBy(seen[n-1].Data)
	if kept && armed != fold.Memory().Control.Armed {
		// It says what came of a request that something made obsolete.
		if fold, err = runlog.FoldAt(ctx, r.cfg.Store.Log(), r.cfg.Store.Machine(), run, armed); err != nil {
			return nil, nil, err
		}
	}
	return fold.Memory(), facts, nil
}

// armedBy returns the event that a failed or obsolete request answers.
func armedBy(p events.Payload) (uint64, bool) {
	failed, ok := p.(*events.LLMAttemptFailed)
	if !ok {
		return 0, false
	}
	_, n, _ := strings.Cut(failed.Key, "/")
	armed, err := strconv.ParseUint(n, 10, 64)
	return armed, err == nil && armed > 0
}

// replyOf returns what an event holds of the reply that it is; nil if it is none.
func replyOf(e *events.Event) *events.Facts {
	switch p := e.Data.(type) {
	case *events.ReflectDone:
		if p.Usage != nil || p.Model != "" || p.Failed != "" {
			return &events.Facts{}
		}
		return nil
	case *events.LLMAttemptFailed:
		if p.NotAsked || p.Kind == codes.KindHandler || p.Kind == codes.KindWorkerLost {
			return nil
		}
	}
	facts := events.FactsOf(e.Data)
	if facts == nil || facts.Asked == nil && facts.Finish == "" && !used(events.Billed(e.Data)) {
		return nil // the next call of an earlier reply, or an edit or an end that is no reply
	}
	return facts
}

func used(u *events.Usage) bool { return u != nil && *u != (events.Usage{}) }

// wanted is a request before it is written.
type wanted struct {
	req  llm.Request
	kept []storedPart
	// stream says that the reply is streamed.
	stream bool
}

// plan returns the request that a memory wants. facts are those of its reply, nil if it is
// awaited.
func (r *Requests) plan(mem *reducer.Memory, facts *events.Facts) (wanted, error) {
	pending, waits := clientmodel.Pending(r.cfg.Store.Machine().Table(), mem)
	if !waits {
		return wanted{}, clientmodel.ErrNoRequest
	}
	e := pending.Effect
	w := wanted{stream: e.Failed.Broken == 0 && (!r.cfg.NoStream || mem.Config.RecordChunks)}
	if e.Kind == effects.KindReflect {
		req, err := reflection(mem, e.Failed)
		w.req, w.stream = req, !r.cfg.NoStream
		return w, err
	}
	ref, _ := effects.Model(mem, e.Failed)
	if facts != nil && facts.Asked != nil {
		ref = events.ModelRef{Provider: facts.Asked.Provider, Model: facts.Asked.Model}
	}
	w.req, w.kept = request(mem, ref), storedParts(mem)
	return w, nil
}

// write writes a request. facts are those of its reply, event n; nil if that is awaited.
func (r *Requests) write(ctx context.Context, run events.Run, n uint64, w wanted, facts *events.Facts) (clientmodel.ModelRequest, error) {
	var dialect, digest string
	if facts != nil {
		dialect, digest = facts.Dialect, facts.RequestSHA256
	}
	provider := w.req.Provider
	caller, own := r.cfg.Providers[provider]
	var writers []llm.Writer
	switch {
	case provider == events.ClientProvider, provider == providers.Scripted, facts != nil && dialect == "" && facts.Finish != "": // no API was asked
	case own:
		if writer, ok := caller.(llm.Writer); ok {
			writers = []llm.Writer{writer}
		}
	default:
		if req, err := r.elsewhere(ctx, provider, run, n); err == nil {
			return req, nil
		}
		if r.cfg.Plain != nil {
			writers = r.cfg.Plain(cmp.Or(dialect, providers.OpenAI))
		}
	}
	req, err := r.whole(ctx, w)
	if err != nil {
		return clientmodel.ModelRequest{}, err
	}
	out := clientmodel.ModelRequest{Model: req.Model}
	if len(writers) == 0 {
		out.Dialect = providers.Scripted
		if provider == events.ClientProvider {
			out.Dialect = dialectClient
		}
		written, err := writeChat(ctx, r.cfg.Chat, req)
		if err != nil {
			return out, err
		}
		return out, out.SetBody(written.Body)
	}
	var written llm.Written
	for _, writer := range writers {
		for _, stream := range []bool{w.stream, !w.stream} {
			now, err := writer.Write(ctx, req, dialect, stream)
			if err != nil {
				return out, err
			}
			sum := sha256.Sum256(now.Body)
			if written.Body == nil || hex.EncodeToString(sum[:]) == digest {
				written = now
			}
		}
	}
	out.Dialect = written.Dialect
	return out, out.SetBody(written.Body)
}

// whole returns the request with its data from the object store, in the form of the text protocol
// if the model uses that.
func (r *Requests) whole(ctx context.Context, w wanted) (llm.Request, error) {
	req := w.req
	messages, err := r.p.withStored(ctx, req.Messages, w.kept)
	if err != nil {
		return req, err
	}
	req.Messages = messages
	if req.Messages, err = r.p.wholeReasoning(ctx, req); err != nil {
		return req, err
	}
	rendered := req
	spoken, err := r.p.speaking(llm.CallerFunc(func(_ context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
		rendered = req
		return nil, errRendered
	}), req)
	if err != nil {
		return req, err
	}
	if _, err := spoken.Call(ctx, req, nil); !errors.Is(err, errRendered) {
		return req, err
	}
	return rendered, nil
}

// errRendered ends a call that only shows how the text protocol puts it.
var errRendered = errors.New("the request was rendered")

// elsewhereWait is how long a planner has to write a request.
const elsewhereWait = 5 * time.Second

// elsewhere asks a planner that has the provider.
func (r *Requests) elsewhere(ctx context.Context, provider string, run events.Run, n uint64) (req clientmodel.ModelRequest, err error) {
	if r.cfg.Questions == nil {
		return req, ports.ErrNoAnswer
	}
	question, err := json.Marshal(clientmodel.RequestQuestion{Namespace: run.Namespace, Run: run.ID, At: n})
	if err != nil {
		return req, err
	}
	ctx, stop := context.WithTimeout(ctx, elsewhereWait)
	defer stop()
	answer, err := r.cfg.Questions.Question(ctx, clientmodel.RequestTopic(provider), question)
	if err != nil {
		return req, err
	}
	if len(answer) == 0 {
		return req, ports.ErrNoAnswer
	}
	return req, json.Unmarshal(answer, &req)
}
