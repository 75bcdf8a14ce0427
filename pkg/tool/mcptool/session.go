package mcptool

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The versions of the protocol. Since stateless, requests stand alone, and a server is asked
// with server/discover which versions it knows. legacy is the last one before.
const (
	stateless = "2026-07-28"
	legacy    = "2025-11-25"
)

// session is one connection to a server.
type session struct {
	client *mcp.ClientSession
	conn   mcp.Connection
	inlet  *inlet
	// look gets a value when the server's tools should be listed: they have changed, or
	// the server may be away.
	look chan struct{}
	// ended is closed when the connection is gone because of reason.
	ended  chan struct{}
	reason error
	// life ends with the session. If this process ended the session, its cause says why.
	// cut ends it.
	life context.Context
	cut  context.CancelCauseFunc

	// end ends the session of a URL for a reason. It is nil for a command.
	end func(error)

	calls atomic.Int64 // in flight
	// asking are the calls in flight, which a server may ask about.
	asking inquiries
}

// captured is a transport that keeps its connection.
type captured struct {
	mcp.Transport
	conn mcp.Connection
}

// Connect connects the transport.
func (c *captured) Connect(ctx context.Context) (_ mcp.Connection, err error) {
	c.conn, err = c.Transport.Connect(ctx)
	return c.conn, err
}

// dial connects to the server within ctx. version is the version of the protocol that is tried
// first.
func (s *server) dial(ctx context.Context, logger *slog.Logger, version string) (*session, error) {
	ses := &session{look: make(chan struct{}, 1), ended: make(chan struct{}), inlet: &inlet{}}
	ses.life, ses.cut = context.WithCancelCause(context.Background())
	var transport captured
	if s.endpoint != nil {
		x := &exchange{endpoint: s.endpoint, inlet: ses.inlet, life: ses.life, discover: s.discover, end: func(why error) {
			ses.cut(why)
			go func() { _ = transport.conn.Close() }() // it tells the server, which takes time; the next close waits for it
		}}
		transport.Transport, ses.end = x.transport(s.opts.URL), x.end
	} else {
		p, err := startProcess(s.opts, logger, s.conceal)
		if err != nil {
			return nil, err
		}
		ses.inlet, transport.Transport = &p.inlet, &discovering{process: p, wait: s.discover}
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "moorebus", Version: "1"}, &mcp.ClientOptions{
		Capabilities:       &mcp.ClientCapabilities{}, // servers may ask for nothing but a human's answer
		ElicitationHandler: ses.elicited,
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) {
			ses.inlet.handled()
			ses.lookSoon()
		},
	})
	if err := addTasks(client); err != nil {
		return nil, err
	}
	// Closing the connection ends the handshake at once. The context alone does not if the
	// server does not read or sends an endless answer.
	stop := context.AfterFunc(ctx, func() {
		if p, ok := transport.Transport.(*discovering); ok {
			killGroup(p.process.cmd)
			return
		}
		ses.cut(context.Cause(ctx))
	})
	defer stop()
	connected, err := client.Connect(ctx, &transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		if transport.conn != nil {
			_ = transport.conn.Close() // the handshake's error says more
		}
		ses.cut(nil)
		return nil, cmp.Or(ses.flaw(), err)
	}
	ses.client, ses.conn = connected, transport.conn
	go func() {
		ended := connected.Wait()
		ses.cut(nil)
		ses.reason = cmp.Or(ses.flaw(), ended)
		close(ses.ended)
	}()
	return ses, nil
}

// connect dials with the newest version of the protocol that the server knows. A server that
// knew only older ones is asked for those first.
func (s *server) connect(ctx context.Context, logger *slog.Logger) (*session, error) {
	first, second := stateless, legacy
	if s.legacy {
		first, second = second, first
	}
	ses, err := s.dialFirst(ctx, logger, first)
	if err != nil && ctx.Err() == nil && (answerOf(err) != nil || errors.Is(err, context.DeadlineExceeded)) {
		var later error
		if ses, later = s.dial(ctx, logger, second); later != nil {
			return nil, err
		}
		err = nil
	}
	if err != nil {
		return nil, err
	}
	s.legacy = ses.client.InitializeResult().ProtocolVersion < stateless
	return ses, nil
}

// dialFirst dials a URL in half of the time that there is, which leaves the other half for
// another version. A command gets all of it: it may have to be downloaded first.
func (s *server) dialFirst(ctx context.Context, logger *slog.Logger, version string) (*session, error) {
	if deadline, ok := ctx.Deadline(); ok && s.endpoint != nil {
		half, stop := context.WithTimeout(ctx, time.Until(deadline)/2)
		defer stop()
		return s.dial(half, logger, version)
	}
	return s.dial(ctx, logger, version)
}

// lookSoon requests a list of the server's tools.
func (s *session) lookSoon() {
	select {
	case s.look <- struct{}{}:
	default: // one is requested already
	}
}

// over reports whether the session has ended or is ending.
func (s *session) over() bool { return s.life.Err() != nil }

// enter counts a call as in flight until leave.
func (s *session) enter() (leave func()) {
	s.calls.Add(1)
	return func() { s.calls.Add(-1) }
}

// close ends the session with all calls in flight, and returns when nothing is left.
func (s *session) close() {
	_ = s.conn.Close() // first, since a graceful end would wait for calls in flight
	s.cut(nil)
	_ = s.client.Close() // the connection is gone already
	<-s.ended
}

// why returns the reason of the session's end if there is one, else err.
func (s *session) why(err error) error {
	var ended *endedError
	if errors.As(err, &ended) {
		return ended
	}
	if why := s.flaw(); why != nil {
		return why
	}
	select {
	case <-s.ended:
		return cmp.Or(s.reason, err)
	default:
		return err
	}
}

// flaw returns why this process ended the session, or nil if it did not or the server is
// not at fault.
func (s *session) flaw() error {
	if why := context.Cause(s.life); why != nil && !errors.Is(why, context.Canceled) {
		return why
	}
	return nil
}

// listChanged is the only notification that matters. The server's requests are declined at
// once, so it has nothing to cancel.
const listChanged = "notifications/tools/list_changed"

// maxAsked bounds the unanswered requests of a server.
const maxAsked = 64

// errAsks says that a server sends too many requests.
var errAsks = errors.New("it sends requests faster than they are answered")

// inlet bounds what a server sends, since the SDK queues requests and notifications without
// a bound.
type inlet struct {
	asked   atomic.Int64 // unanswered requests of the server
	changes atomic.Int64 // unhandled list changes, at most 1
}

// admits reports whether a message should be passed on. The error says that the server
// floods.
func (i *inlet) admits(msg jsonrpc.Message) (bool, error) {
	req, ok := msg.(*jsonrpc.Request)
	switch {
	case !ok:
		return true, nil
	case req.IsCall():
		if i.asked.Add(1) > maxAsked {
			return false, errAsks
		}
		return true, nil
	case req.Method == listChanged:
		// An unhandled change covers this one too.
		return i.changes.CompareAndSwap(0, 1), nil
	}
	return false, nil
}

// answered counts an answer to the server.
func (i *inlet) answered(msg jsonrpc.Message) {
	if _, ok := msg.(*jsonrpc.Response); !ok {
		return
	}
	// Not below 0: a request that is itself the body of an answer was not counted.
	for n := i.asked.Load(); n > 0 && !i.asked.CompareAndSwap(n, n-1); n = i.asked.Load() {
	}
}

// handled marks the list change as seen.
func (i *inlet) handled() { i.changes.Store(0) }
