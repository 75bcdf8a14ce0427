package mcptool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/tool"
)

// pauses separate attempts to connect.
var pauses = retry.Policy{
	First: 100 * time.Millisecond, Factor: 2, Max: 30 * time.Second,
	Jitter: func(d time.Duration) time.Duration { return d/2 + rand.N(d) },
}

const (
	// slowest is the number of failures in a row after which pauses stop growing, and
	// slowestStart the same for a server that has not been up yet: about a second.
	slowest, slowestStart = 10, 4
	// stableAfter is how long a session must last for the pauses to start over.
	stableAfter = 10 * time.Second
	// replyTime is the part of a call's time that is left for the error when a call has
	// waited for a lost server.
	replyTime = 500 * time.Millisecond
	// probeEvery is how often a server is asked for its tools without a reason, and
	// listTimeout how long that may take. The session ends if the server does not answer
	// twice while no call is in flight.
	probeEvery  = 30 * time.Second
	listTimeout = 15 * time.Second
	probeAgain  = time.Second
	// discoverWait is how long a command may take to answer server/discover. Commands that
	// know no such request may not answer at all.
	discoverWait = 5 * time.Second
	// relistEvery is the shortest time between two lists after notifications of changes.
	relistEvery = time.Second
)

// server is the source of one MCP server's tools. Run may be called once.
type server struct {
	opts     Options
	endpoint *endpoint // nil for a command
	legacy   bool      // the server knew no stateless version of the protocol
	discover time.Duration
	probe    time.Duration
	conceal  *strings.Replacer
	keys     []string

	mu sync.Mutex
	// current is the session, or nil; then last says why there is none.
	current *session
	last    error
	// changed is closed when current changes.
	changed chan struct{}
}

// New makes a source and checks its options. Nothing starts before Run. The error names
// everything that is wrong.
func New(o Options) (tool.Source, error) {
	o, err := o.check()
	if err != nil {
		return nil, err
	}
	s := &server{opts: o, changed: make(chan struct{}), probe: probeEvery, discover: discoverWait, last: errors.New("it has not been started yet")}
	s.conceal, s.keys = concealer(o)
	if o.URL != "" {
		s.endpoint = newEndpoint(o)
	}
	return s, nil
}

// Name returns the server's name.
func (s *server) Name() string { return "mcp " + s.opts.Name }

// Pools returns the one pool of the server's tools.
func (s *server) Pools() []string { return []string{s.opts.Over.WithDefaults().Pool} }

// Run keeps a session with the server until ctx ends. It then ends the session and the
// server's process group.
func (s *server) Run(ctx context.Context, logger *slog.Logger, put func([]tool.Tool)) {
	logger = logger.With("mcp_server", s.opts.Name)
	a := &announcer{put: put, linger: s.opts.Linger}
	defer a.close()
	if s.endpoint != nil {
		defer s.endpoint.close()
		defer time.AfterFunc(s.opts.ConnectTimeout, a.late).Stop()
	}
	failures, said := 0, ""
	for ctx.Err() == nil {
		began := time.Now()
		err := s.serve(ctx, logger, a)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) >= stableAfter {
			failures = 0
		}
		longest := slowest
		if !a.away(s.endpoint != nil && starting(err)) {
			longest = slowestStart
		}
		failures = min(failures+1, longest)
		pause := pauses.Delay(failures)
		if now := fmt.Sprint(err, failures); now != said {
			said = now
			logger.Warn("an MCP server is away; it is tried again", "reason", s.conceal.Replace(err.Error()), "retry_in", pause)
		}
		retry.Wait(ctx, pause)
	}
}

// starting reports whether the server may be about to come up: nobody listens at its
// address, or it says that it is not ready.
func starting(err error) bool {
	var status *statusError
	return errors.As(err, &status) && status.passing() || unreached(err) != nil
}

// serve serves one session to its end. The error is the reason of the end.
func (s *server) serve(ctx context.Context, logger *slog.Logger, a *announcer) (err error) {
	connecting, stop := context.WithTimeout(ctx, s.opts.ConnectTimeout)
	defer stop()
	ses, err := s.connect(connecting, logger)
	if err != nil {
		s.setSession(nil, err)
		return err
	}
	defer func() { s.setSession(nil, err); ses.close() }() // in this order: no call may find a session that is ending
	listed, err := s.list(connecting, ses.client)
	if err != nil {
		return ses.why(err)
	}
	var seen listing
	listed.report(&seen, logger)
	a.here(listed.tools) // first: a call that finds the session must find its tools
	s.setSession(ses, nil)
	logger.Info("an MCP server is connected", "tools", len(listed.tools))
	return s.watch(ctx, ses, listed, logger, a)
}

// watch keeps the tools as the server lists them until the session ends. It bounds how
// often it reads a list that keeps changing.
func (s *server) watch(ctx context.Context, ses *session, before *listing, logger *slog.Logger, a *announcer) error {
	probe := time.NewTimer(s.probe)
	defer probe.Stop()
	calm := time.NewTimer(before.calm())
	defer calm.Stop()
	silent := 0
	for {
		if err := s.awaitRelist(ctx, ses, probe.C, calm.C); err != nil {
			return err
		}
		next := s.probe
		ses.inlet.handled() // including a change that the SDK did not pass on
		asking, stop := context.WithTimeout(ctx, min(listTimeout, s.probe))
		listed, err := s.list(asking, ses.client)
		stop()
		switch {
		case err == nil:
			silent = 0
			listed.report(before, logger)
			before = listed
			a.here(listed.tools)
		case ses.calls.Load() > 0: // the server may do one thing at a time
		default:
			if silent++; silent >= 2 {
				return fmt.Errorf("it does not answer any more: %w", ses.why(err))
			}
			next = min(next, probeAgain)
		}
		probe.Reset(next)
		calm.Reset(before.calm())
	}
}

// awaitRelist waits until the server's tools have to be listed: for the next probe, or
// for a change, but not before calm. The error is the end of ctx or of the session.
func (s *server) awaitRelist(ctx context.Context, ses *session, probe, calm <-chan time.Time) error {
	var look <-chan struct{}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ses.ended:
			return cmp.Or(ses.reason, errors.New("it closed the connection"))
		case <-calm:
			look = ses.look
		case <-look:
			return nil
		case <-probe:
			return nil
		}
	}
}

// Claims reports whether a tool of that name would belong to this server.
func (s *server) Claims(name string) bool { return strings.HasPrefix(name, Prefix(s.opts.Name)) }

// Patience is the timeout of the server's tools.
func (s *server) Patience() time.Duration { return s.opts.Over.WithDefaults().Timeout }

// Up waits for a session. The session's tools are in the registry before.
func (s *server) Up(ctx context.Context) error {
	_, err := s.await(ctx, ctx.Done())
	return err
}

// turn gives calls another session, or none, and why there is none.
func (s *server) setSession(ses *session, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current, s.last = ses, why
	close(s.changed)
	s.changed = make(chan struct{})
}

// patience returns how long a call waits for a session: the time that it has, less the
// time to return an error.
func patience(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 30 * time.Second
	}
	left := time.Until(deadline)
	return max(left-replyTime, left/2)
}

// await returns a live session. It waits for one until enough is closed or ctx ends.
func (s *server) await(ctx context.Context, enough <-chan struct{}) (*session, error) {
	for {
		s.mu.Lock()
		ses, changed, last := s.current, s.changed, s.last
		s.mu.Unlock()
		if ses != nil && !ses.over() {
			return ses, nil
		}
		if ses != nil { // it is about to be replaced
			last = ses.why(errors.New("its session has ended"))
		}
		select {
		case <-changed:
			continue
		case <-enough:
		case <-ctx.Done():
		}
		f := tool.Failf(tool.CodeUnreachable, "the MCP server %q is away: %s", s.opts.Name, s.conceal.Replace(last.Error()))
		f.NotSent = true
		return nil, f
	}
}

// announcer puts a server's tools into the registry, and removes them when the server has
// been away for the linger time.
type announcer struct {
	put    func([]tool.Tool)
	linger time.Duration

	mu      sync.Mutex
	timer   *time.Timer
	offered bool // the registry has tools of the server
	said    bool // put was called
	closed  bool
	// absence counts the server's returns, so that a timer that fires late removes
	// nothing.
	absence int
}

// here offers the tools of a connected server.
func (a *announcer) here(tools []tool.Tool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.absence++
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
	a.offered, a.said = true, true
	a.put(tools)
}

// late offers no tools if nothing has been offered yet.
func (a *announcer) late() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.said && !a.closed {
		a.said = true
		a.put(nil)
	}
}

// away starts the linger time. Unless the server is starting, and then has until late, it
// offers no tools if nothing has been offered yet. It reports whether anything has been
// offered, now or before.
func (a *announcer) away(starting bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.said && !starting {
		a.said = true
		a.put(nil)
	}
	if a.offered && a.timer == nil {
		absence := a.absence
		a.timer = time.AfterFunc(a.linger, func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.absence == absence {
				a.offered, a.timer = false, nil
				a.put(nil)
			}
		})
	}
	return a.said
}

// close stops all later offers.
func (a *announcer) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.absence++
	if a.timer != nil {
		a.timer.Stop()
	}
}
