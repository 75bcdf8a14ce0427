// Package servicetool makes tools of the endpoints of NATS micro services (ADR-32), which
// may be written in any language.
//
// [New] makes the source. While it runs, it asks the services for their endpoints every few
// seconds ($SRV.INFO). An endpoint whose metadata has the key moorebus.tool is a tool:
//
//	moorebus.tool          the tool's name; required
//	moorebus.description   what it does, for the model
//	moorebus.schema        JSON Schema of the arguments; default: any object
//	moorebus.effect        pure, idempotent or once; default once
//	moorebus.risk          low, medium, high or critical; default low
//	moorebus.timeout       such as 10s; default 30s
//	moorebus.pool          default: default
//	moorebus.retries       default 0
//
// An endpoint whose metadata is wrong is no tool, and one warning says why. So is one
// without a queue group, or with several: each of its groups would run every call.
//
// # Versions
//
// The instances of a service share its calls by the queue group. A tool stays as it is while
// the service's version is the same, whatever later instances say of it. If instances of
// several versions run, a tool is that of the highest version that has it. A tool is there
// until no instance with it has answered for 30 s.
//
// If two services have a tool of one name, no run starts with it. Runs that started before
// keep the service that they know.
//
// # Calls
//
// A call is a request on the endpoint's subject. Its body is the arguments. It has the
// headers Idempotency-Key (`<run>/<call id>`), Moorebus-Run and Moorebus-Call, and
// traceparent if the run has one. The result is the body of the reply as text, except that
// an image or a PDF (header Content-Type) is kept with it. Everything else is a failure:
//
//   - service_<code>: the reply has the header Nats-Service-Error-Code. The message is
//     Nats-Service-Error. Codes 429 and 5xx pass (see [tool.Failure]).
//   - unavailable: for [Options.Patience] nobody served the subject, or the connection was
//     broken. Nothing was sent.
//   - unreachable: the connection broke before the reply came.
//
// A call ends with its context. The service does not learn of it.
package servicetool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Service names a NATS service. Its tools are in Pool if that is set.
type Service struct{ Name, Pool string }

// Options configure the source.
type Options struct {
	// Conn is a connection to the bus that stays the caller's. It may be given
	// later instead, by the source's method Use(*nats.Conn).
	Conn *nats.Conn
	// Services are the services whose tools are offered. All adds those of every other
	// service.
	Services []Service
	All      bool
	// Patience is how long a call that nobody serves is sent again, at most as long as
	// its timeout allows. Default 5 s.
	Patience time.Duration
	// Every is how often services are asked. An instance that does not answer ten times in
	// a row is gone. Default 3 s.
	Every time.Duration
}

const (
	defaultPatience = 5 * time.Second
	defaultEvery    = 3 * time.Second
)

// services provides the tools of services. Its Run may be called once.
type services struct {
	opts Options

	mu     sync.Mutex
	conn   *nats.Conn
	client *api.Client
}

var _ tool.Source = (*services)(nil)

// New makes a source and checks its options. The error names everything that is wrong.
func New(o Options) (tool.Source, error) {
	var errs []error
	seen := map[string]bool{}
	for _, s := range o.Services {
		if s.Name == "" || strings.ContainsAny(s.Name, ". *>\t\r\n") {
			errs = append(errs, fmt.Errorf("service %q: is not the name of a NATS service", s.Name))
		}
		if seen[s.Name] {
			errs = append(errs, fmt.Errorf("service %q: is named twice; remove one", s.Name))
		}
		seen[s.Name] = true
		if s.Pool != "" {
			if err := checkPool(s.Pool); err != nil {
				errs = append(errs, fmt.Errorf("service %q: %w", s.Name, err))
			}
		}
	}
	if len(o.Services) == 0 && !o.All {
		errs = append(errs, errors.New("services: name at least one, or set All"))
	}
	if o.Patience <= 0 {
		o.Patience = defaultPatience
	}
	if o.Every <= 0 {
		o.Every = defaultEvery
	}
	o.Services = slices.Clone(o.Services)
	return &services{opts: o, conn: o.Conn}, errors.Join(errs...)
}

// Use sets the connection. Call it before Run.
func (s *services) Use(conn *nats.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = conn
}

// Name returns "NATS services".
func (s *services) Name() string { return "NATS services" }

// Pools returns the pools of the named services. The metadata of the others may name more.
func (s *services) Pools() []string {
	var pools []string
	for _, service := range s.opts.Services {
		pools = append(pools, tool.Definition{Pool: service.Pool}.WithDefaults().Pool)
	}
	if s.opts.All {
		pools = append(pools, tool.Definition{}.WithDefaults().Pool)
	}
	slices.Sort(pools)
	return slices.Compact(pools)
}

// Run asks for services until ctx ends.
func (s *services) Run(ctx context.Context, logger *slog.Logger, put func([]tool.Tool)) {
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	if conn == nil {
		logger.Error("no connection was given for NATS services; they are not asked for")
		put(nil)
		return
	}
	client, unhook, err := api.New(conn, requestTimeout, logger)
	if err != nil {
		logger.Error("NATS services cannot be asked for", "reason", err)
		put(nil)
		return
	}
	defer unhook()
	s.mu.Lock()
	s.client = client
	s.mu.Unlock()
	d := newDiscovery(s, client, logger, put)
	if err := d.run(ctx); err != nil && ctx.Err() == nil {
		logger.Error("NATS services are not asked for any more", "reason", err)
		put(nil)
	}
}
