package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

// site is an embedded server on a directory with a bus, and all roles in this
// process once they were asked for.
type site struct {
	server *embedded.Server
	conn   *nats.Conn
	bus    *natsbus.Bus

	host  *host.Host
	leave func()
}

// openSite starts a server on the directory, and sets the bus up if it is not.
func openSite(ctx context.Context, o embedded.Options) (*site, error) {
	quiet := slog.New(slog.DiscardHandler)
	if o.Logger == nil {
		o.Logger = quiet
	}
	server, err := embedded.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	s := &site{server: server, leave: func() {}}
	if s.conn, err = server.Connect(); err != nil {
		s.close()
		return nil, err
	}
	if err = natsbus.Init(ctx, s.conn, natsbus.InitOptions{}); err == nil {
		s.bus, err = natsbus.Open(ctx, s.conn, natsbus.Options{Logger: quiet})
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// staff starts all roles.
func (s *site) staff(ctx context.Context) error {
	host, err := newHost(s.bus, defaultSlots)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = host.Run(ctx) }()
	s.host, s.leave = host, func() { stop(); <-ended }
	return host.Announce(ctx)
}

// dismiss ends the roles.
func (s *site) dismiss() {
	s.leave()
	s.host, s.leave = nil, func() {}
}

// close stops everything.
func (s *site) close() {
	s.dismiss()
	if s.conn != nil {
		s.conn.Close()
	}
	s.server.Shutdown()
}

// carry starts runs of the agent, as many at once as startSlots, and waits for the
// end of all. It returns the last one.
func (s *site) carry(ctx context.Context, runs int, a events.Agent) (events.Run, error) {
	ends, err := watchEnds(s.bus, runs)
	if err != nil {
		return events.Run{}, err
	}
	defer ends.stop()
	ids, err := startAll(ctx, runs, s.host, a)
	if err != nil {
		return events.Run{}, err
	}
	if err := ends.wait(ctx, runs); err != nil {
		return events.Run{}, err
	}
	return s.host.Store().Place(events.DefaultNamespace, ids[runs-1]), nil
}

// one carries a single run and returns it.
func (s *site) one(ctx context.Context, a events.Agent) (events.Run, error) {
	done := make(chan string, 16)
	stop, err := s.bus.Watch(journal.Filter{To: events.Done}, func(rec journal.Record) {
		if s, err := events.ParseSubject(rec.Subject); err == nil {
			done <- s.Run.ID
		}
	}, nil)
	if err != nil {
		return events.Run{}, err
	}
	defer stop()
	started, err := s.host.Gateway().Start(ctx, events.DefaultNamespace, control.StartRequest{Agent: &a, Task: "Do the steps."})
	if err != nil {
		return events.Run{}, err
	}
	for {
		select {
		case id := <-done:
			if id == started.RunID {
				return s.host.Store().Place(events.DefaultNamespace, id), nil
			}
		case <-ctx.Done():
			return events.Run{}, ctx.Err()
		}
	}
}

// recast carries one run with that many tool steps out, and makes a mould of it.
func (s *site) recast(ctx context.Context, steps int) (*mould, error) {
	if err := s.staff(ctx); err != nil {
		return nil, err
	}
	defer s.dismiss()
	a, err := stepAgent(steps)
	if err != nil {
		return nil, err
	}
	run, err := s.one(ctx, a)
	if err != nil {
		return nil, err
	}
	return newMould(ctx, s.bus, run)
}

// diskUse is how many bytes lie in a directory.
func diskUse(dir string) (int64, error) {
	var total int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the server removed it meanwhile
		}
		if err == nil {
			total += info.Size()
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return total, err
}
