package mcptool

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// legacy is the protocol version that is tried first: it has sessions, whose end is
// seen. Servers that know only later ones say so.
const legacy = "2025-11-25"

// session is one connection to a server.
type session struct {
	client *mcp.ClientSession
	conn   mcp.Connection
	inlet  *inlet
	// look gets a value when the server is to be asked for its tools: they have
	// changed, or it may be away.
	look chan struct{}
	// ended is closed when the connection is gone; reason is why.
	ended  chan struct{}
	reason error
	// life ends with the session; its cause is why we ended it, if we did. cut ends
	// it.
	life context.Context
	cut  context.CancelCauseFunc

	// end ends the session of a URL for a reason; nil for a command.
	end func(error)

	calls atomic.Int64 // under way
}

// captured is a transport that remembers its connection.
type captured struct {
	mcp.Transport
	conn mcp.Connection
}

// Connect connects the transport.
func (c *captured) Connect(ctx context.Context) (_ mcp.Connection, err error) {
	c.conn, err = c.Transport.Connect(ctx)
	return c.conn, err
}

// dial connects to the server, which answers within ctx. version is that of the
// protocol, empty for the latest.
func (s *server) dial(ctx context.Context, logger *slog.Logger, version string) (*session, error) {
	ses := &session{look: make(chan struct{}, 1), ended: make(chan struct{}), inlet: &inlet{}}
	ses.life, ses.cut = context.WithCancelCause(context.Background())
	var transport captured
	if s.endpoint != nil {
		x := &exchange{endpoint: s.endpoint, inlet: ses.inlet, life: ses.life, end: func(why error) {
			ses.cut(why)
			go func() { _ = transport.conn.Close() }() // it tells the server, which takes time; whoever closes next waits for it
		}}
		transport.Transport, ses.end = x.transport(s.opts.URL), x.end
	} else {
		p, err := startProcess(s.opts, logger, s.conceal)
		if err != nil {
			return nil, err
		}
		ses.inlet, transport.Transport = &p.inlet, p
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "moorebus", Version: "1"}, &mcp.ClientOptions{
		Capabilities: &mcp.ClientCapabilities{}, // we do nothing for servers
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) {
			ses.inlet.handled()
			ses.lookSoon()
		},
	})
	// A connection that is closed ends the handshake at once; its context alone
	// does not where the server does not read, or sends an answer without an end.
	stop := context.AfterFunc(ctx, func() {
		if p, ok := transport.Transport.(*process); ok {
			killGroup(p.cmd)
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

// connect is dial with the version of the protocol that the server knows.
func (s *server) connect(ctx context.Context, logger *slog.Logger) (*session, error) {
	if s.modern {
		return s.dial(ctx, logger, "")
	}
	ses, err := s.dial(ctx, logger, legacy)
	if err == nil || answerOf(err) == nil {
		return ses, err
	}
	ses, later := s.dial(ctx, logger, "")
	if later != nil {
		return nil, err
	}
	s.modern = true
	return ses, nil
}

// lookSoon has the server asked for its tools.
func (s *session) lookSoon() {
	select {
	case s.look <- struct{}{}:
	default: // it is about to be
	}
}

// over reports whether the session has ended or is about to.
func (s *session) over() bool { return s.life.Err() != nil }

// enter counts a call that is under way until leave.
func (s *session) enter() (leave func()) {
	s.calls.Add(1)
	return func() { s.calls.Add(-1) }
}

// close ends the session, whatever is under way, and returns when nothing is left.
func (s *session) close() {
	_ = s.conn.Close() // first: a graceful end would wait for what is under way
	s.cut(nil)
	_ = s.client.Close() // the connection is gone already
	<-s.ended
}

// why is the reason of a session's end where there is one, else what a call ended
// with.
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

// flaw is why we ended the session, nil if we did not, or for no fault of its.
func (s *session) flaw() error {
	if why := context.Cause(s.life); why != nil && !errors.Is(why, context.Canceled) {
		return why
	}
	return nil
}

// listChanged is the one notification of a server that matters to us. Its requests
// are declined at once, so that there is nothing for it to cancel.
const listChanged = "notifications/tools/list_changed"

// maxAsked is how many requests of a server may be unanswered at a time.
const maxAsked = 64

// errAsks says that a server floods.
var errAsks = errors.New("it sends requests faster than they are answered")

// inlet keeps what a server sends from piling up: the SDK queues requests and
// notifications without a bound.
type inlet struct {
	asked   atomic.Int64 // the server's requests that have no answer yet
	changes atomic.Int64 // list changes that are not handled yet
}

// takes reports whether a message is to be passed on. The error says that the
// server floods.
func (i *inlet) takes(msg jsonrpc.Message) (bool, error) {
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
		// One that is not handled yet stands for this one too.
		return i.changes.CompareAndSwap(0, 1), nil
	}
	return false, nil
}

// answered counts an answer of ours.
func (i *inlet) answered(msg jsonrpc.Message) {
	if _, ok := msg.(*jsonrpc.Response); !ok {
		return
	}
	// Not below none: a request that is itself the body of an answer was not counted.
	for n := i.asked.Load(); n > 0 && !i.asked.CompareAndSwap(n, n-1); n = i.asked.Load() {
	}
}

// handled says that the list change was seen.
func (i *inlet) handled() { i.changes.Store(0) }
