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

// pauses are those between attempts to connect.
var pauses = retry.Policy{
	First: 100 * time.Millisecond, Factor: 2, Max: 30 * time.Second,
	Jitter: func(d time.Duration) time.Duration { return d/2 + rand.N(d) },
}

const (
	// After slowest failures in a row the pauses grow no more. While a server is waited
	// for that was not there when we started, they stay at about a second.
	slowest, slowestStart = 10, 4
	// settled is how long a session has to last for the pauses to begin anew.
	settled = 10 * time.Second
	// sayTime is what is left of a call's time when it has waited long enough for a
	// server that is away.
	sayTime = 500 * time.Millisecond
	// probeEvery is how often a server is asked for its tools without a reason, and
	// listTimeout how long it may take; one that does not answer twice, while no
	// call is under way, is given up.
	probeEvery  = 30 * time.Second
	listTimeout = 15 * time.Second
	probeAgain  = time.Second
	// lookEvery is how often a server is asked at most because it says that its tools
	// have changed.
	lookEvery = time.Second
)

// server is the source of one MCP server's tools. Run it once.
type server struct {
	opts     Options
	endpoint *endpoint // nil for a command
	modern   bool      // it knows only later versions of the protocol
	probe    time.Duration
	conceal  *strings.Replacer

	mu sync.Mutex
	// current is the session, nil while there is none; then last says why.
	current *session
	last    error
	// changed is closed when it is another one.
	changed chan struct{}
}

var _ tool.Returning = (*server)(nil)

// New checks the options; nothing is started before Run.
func New(o Options) (tool.Source, error) {
	o, err := o.check()
	if err != nil {
		return nil, err
	}
	s := &server{opts: o, changed: make(chan struct{}), probe: probeEvery, conceal: concealer(o), last: errors.New("it was not started yet")}
	if o.URL != "" {
		s.endpoint = newEndpoint(o)
	}
	return s, nil
}

// Name returns the server's name.
func (s *server) Name() string { return "mcp " + s.opts.Name }

// Pools returns the one pool of the server's tools.
func (s *server) Pools() []string { return []string{s.opts.Over.WithDefaults().Pool} }

// Run keeps a session with the server until ctx ends. Then it ends the session, the
// server's process with everything in its group, and returns.
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
		if time.Since(began) >= settled {
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
			logger.Warn("an MCP server is away; it is tried again", "reason", s.conceal.Replace(err.Error()), "in", pause)
		}
		retry.Wait(ctx, pause)
	}
}

// starting reports whether a server that failed so may be about to come up: nobody
// listens there yet, or who does says that it is not ready.
func starting(err error) bool {
	var status *statusError
	return errors.As(err, &status) && status.passing() || unreached(err) != nil
}

// serve connects and serves one session to its end, and says why it ended.
func (s *server) serve(ctx context.Context, logger *slog.Logger, a *announcer) (err error) {
	connecting, stop := context.WithTimeout(ctx, s.opts.ConnectTimeout)
	defer stop()
	ses, err := s.connect(connecting, logger)
	if err != nil {
		s.turn(nil, err)
		return err
	}
	defer func() { s.turn(nil, err); ses.close() }() // in this order: a call must not find one that ends
	listed, err := s.list(connecting, ses.client)
	if err != nil {
		return ses.why(err)
	}
	var seen listing
	listed.report(&seen, logger)
	a.here(listed.tools) // first: who finds the session finds its tools
	s.turn(ses, nil)
	logger.Info("an MCP server is there", "tools", len(listed.tools))
	return s.watch(ctx, ses, listed, logger, a)
}

// watch keeps the tools as the server lists them until the session ends. A server
// whose list changes all the time is looked at in intervals.
func (s *server) watch(ctx context.Context, ses *session, before *listing, logger *slog.Logger, a *announcer) error {
	probe := time.NewTimer(s.probe)
	defer probe.Stop()
	calm := time.NewTimer(lookEvery)
	defer calm.Stop()
	silent := 0
	for {
		if err := s.rouse(ctx, ses, probe.C, calm.C); err != nil {
			return err
		}
		next := s.probe
		ses.inlet.handled() // also a change that the SDK did not pass on
		asking, stop := context.WithTimeout(ctx, min(listTimeout, s.probe))
		listed, err := s.list(asking, ses.client)
		stop()
		switch {
		case err == nil:
			silent = 0
			listed.report(before, logger)
			before = listed
			a.here(listed.tools)
		case ses.calls.Load() > 0: // it may do one thing at a time
		default:
			if silent++; silent >= 2 {
				return fmt.Errorf("it does not answer any more: %w", ses.why(err))
			}
			next = min(next, probeAgain)
		}
		probe.Reset(next)
		calm.Reset(lookEvery)
	}
}

// rouse waits until the server is to be asked for its tools: when it is probed, or
// has a reason to be looked at once it has been calm. The error is the end of ctx
// or of the session.
func (s *server) rouse(ctx context.Context, ses *session, probe, calm <-chan time.Time) error {
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

// Claims reports whether the name is one that a tool of this server would have.
func (s *server) Claims(name string) bool { return strings.HasPrefix(name, Prefix(s.opts.Name)) }

// Patience is the timeout of the server's tools.
func (s *server) Patience() time.Duration { return s.opts.Over.WithDefaults().Timeout }

// Up waits until there is a session, whose tools were put before.
func (s *server) Up(ctx context.Context) error {
	_, err := s.await(ctx, ctx.Done())
	return err
}

// turn gives calls another session, or none, and why there is none.
func (s *server) turn(ses *session, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current, s.last = ses, why
	close(s.changed)
	s.changed = make(chan struct{})
}

// patience is how long a call waits for a session: as long as it has, less what it
// takes to say that there was none.
func patience(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return tool.DefaultTimeout
	}
	left := time.Until(deadline)
	return max(left-sayTime, left/2)
}

// await returns a session that has not ended, for which it waits until enough or the
// end of ctx.
func (s *server) await(ctx context.Context, enough <-chan struct{}) (*session, error) {
	for {
		s.mu.Lock()
		ses, changed, last := s.current, s.changed, s.last
		s.mu.Unlock()
		if ses != nil && !ses.over() {
			return ses, nil
		}
		if ses != nil { // it is about to be turned
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
