package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/feature/webhooks/row"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/sharedlog"
	"github.com/moorebus/moorebus/pkg/journal"
)

// lease is what the process has that delivers.
var lease = ports.RoleKey{Role: "gateway", Name: row.Lease}

// lookEvery is how often the process that delivers looks for changes of webhooks.
const lookEvery = 2 * time.Second

// Run delivers while this process has the lease, until ctx ends. On a bus that cannot, it says so and
// looks again from time to time.
func (h *Hooks) Run(ctx context.Context) error {
	if h.cfg.Leases == nil {
		<-ctx.Done()
		return nil
	}
	return runs.UntilSetUp(ctx, h.cfg.Logger, "webhooks are not delivered", func(ctx context.Context) error {
		return h.cfg.Leases.Lead(ctx, lease, h.deliver)
	})
}

// delivery is a reader of the log that runs for a webhook.
type delivery struct {
	revision uint64
	reader   *reader
	stop     context.CancelFunc
	done     chan struct{}
}

// end stops a delivery and waits until it has noted how far it is.
func (d *delivery) end() {
	d.stop()
	<-d.done
}

// deliver keeps a reader running for each webhook, until ctx ends.
func (h *Hooks) deliver(ctx context.Context) error {
	h.cfg.Logger.Info("this process delivers to webhooks")
	log := sharedlog.New(h.runs.Log, sharedlog.Options{Logger: h.cfg.Logger})
	running := map[string]*delivery{}
	defer func() {
		for _, d := range running {
			d.stop()
		}
		for _, d := range running {
			d.end()
		}
	}()
	for noted := false; ; {
		err := h.look(ctx, log, running)
		if err == nil && !noted {
			noted = true
			if err := h.noteReach(ctx); err != nil { // whoever delivers does so without it
				h.cfg.Logger.Warn("commands on the bus do not know which networks webhooks may reach", "reason", err)
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, journal.ErrDenied), errors.Is(err, journal.ErrNotReady):
			return err
		case err != nil:
			h.cfg.Logger.Warn("webhooks cannot be read, and are as they were", "reason", err)
		}
		timer := time.NewTimer(lookEvery)
		select {
		case <-timer.C:
		case <-h.changed:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// look starts and ends readers as the store says, and hands on what is to be tried again.
func (h *Hooks) look(ctx context.Context, log journal.Log, running map[string]*delivery) error {
	hooks, revisions, unreadable := map[string]*hook{}, map[string]uint64{}, ""
	take := func(key string, value []byte, revision uint64) {
		var w hook
		switch err := json.Unmarshal(value, &w); {
		case err != nil:
			unreadable = key
		case w.Disabled == "":
			hooks[key], revisions[key] = &w, revision
		}
	}
	err := h.values(ctx, kindHook, take)
	if err == nil && h.updates.Load() != nil {
		err = h.values(ctx, kindPush, take)
	}
	if err != nil {
		return err
	}
	if unreadable != "" {
		h.cfg.Logger.Warn("a webhook cannot be read", "key", unreadable)
	}
	for key, d := range running {
		select {
		case <-d.done:
			delete(running, key)
		default:
			if revisions[key] != d.revision {
				d.end()
				delete(running, key)
			}
		}
	}
	for key, w := range hooks {
		if running[key] == nil {
			running[key] = h.start(ctx, log, w, revisions[key])
		}
	}
	if len(running) == 0 {
		return nil
	}
	return h.handOn(ctx, running)
}

// handOn hands what is to be tried again to the readers.
func (h *Hooks) handOn(ctx context.Context, running map[string]*delivery) error {
	asked := map[string][]again{}
	err := h.values(ctx, kindRetry, func(at string, value []byte, revision uint64) {
		var p pending
		if parts := strings.Split(at, "."); json.Unmarshal(value, &p) == nil && len(parts) == 4 {
			of := key(kindHook, parts[1], parts[2])
			asked[of] = append(asked[of], again{pending: p, key: at, revision: revision})
		}
	})
	for of, all := range asked {
		if d := running[of]; d != nil {
			select {
			case d.reader.again <- all:
			case <-d.done:
			case <-ctx.Done():
			}
		}
	}
	return err
}

// start starts the reader of a webhook.
func (h *Hooks) start(ctx context.Context, log journal.Log, w *hook, revision uint64) *delivery {
	ctx, stop := context.WithCancel(ctx)
	d := &delivery{revision: revision, reader: newReader(h, log, w, revision), stop: stop, done: make(chan struct{})}
	go func() {
		defer close(d.done)
		defer stop()
		if err := d.reader.run(ctx); err != nil && ctx.Err() == nil {
			d.reader.logger.Warn("delivery to a webhook begins again from what was noted", "reason", err)
			retry.Wait(ctx, lookEvery)
		}
	}()
	return d
}
