package history

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/history/follow"
	"github.com/moorebus/moorebus/internal/history/store"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/tombstones"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// views are the store and what keeps it up to date. They are safe for concurrent use.
type views struct {
	c        *control.Controller
	settings Settings
	// alone says that nothing keeps the store between requests.
	alone bool
	// asked is closed by the first request.
	asked <-chan struct{}
	ask   func()

	mu sync.RWMutex // is held by who uses the store
	// opened is nil while there is no store. changed is closed and replaced when it changes.
	opened  *opened
	changed chan struct{}
}

// opened is an open store.
type opened struct {
	*store.Store
	follower *follow.Follower
}

// streamed is a bus that says which streams its log has, each with the time at which it was made.
type streamed interface {
	Streams(ctx context.Context) ([]string, error)
}

func newViews(c *control.Controller, s Settings) *views {
	asked := make(chan struct{})
	return &views{c: c, settings: s, asked: asked, ask: sync.OnceFunc(func() { close(asked) }), changed: make(chan struct{})}
}

// openAgain is how soon a store is opened again after an error of the bus.
const openAgain = time.Second

// keep opens the store and keeps it up to date until ctx ends.
func (v *views) keep(ctx context.Context) {
	o, err := v.open(ctx)
	if err != nil {
		if ctx.Err() == nil {
			v.c.Config().Logger.Warn("runs cannot be searched yet", "reason", err)
		}
		retry.Wait(ctx, openAgain)
		return
	}
	v.set(o)
	o.follower.Run(ctx)
	v.set(nil)
	if err := o.Close(); err != nil {
		v.c.Config().Logger.Warn("the views were not closed", "reason", err)
	}
}

// set makes a store, or nil, the one that is used. It waits for those who use another one.
func (v *views) set(o *opened) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.opened = o
	close(v.changed)
	v.changed = make(chan struct{})
}

// open opens the store.
func (v *views) open(ctx context.Context) (*opened, error) {
	cfg := v.c.Config()
	streams, file, err := v.streams(ctx)
	if err != nil {
		return nil, err
	}
	s, err := store.Open(ctx, file, cfg.Logger)
	if err != nil {
		return nil, err
	}
	o := follow.Options{Log: v.c.Log, Machine: v.c.Store.Machine(), Store: s, Streams: streams, Purged: v.purged, Logger: cfg.Logger}
	if cfg.Blobs != nil {
		o.Blob = cfg.Blobs.Blob
	}
	return &opened{s, follow.New(o)}, nil
}

// streams returns the streams of the log, and the file of the store. A log that does not say when its streams
// were made gets a new one.
func (v *views) streams(ctx context.Context) (streams []string, file string, err error) {
	bus, is := v.c.Config().KV.(streamed)
	if !is {
		for shard := range v.c.Log.Shards() {
			streams = append(streams, events.StreamName(shard))
		}
		return streams, "", nil
	}
	if streams, err = bus.Streams(ctx); err != nil || v.settings.File == nil {
		return streams, "", err
	}
	file = v.settings.File(streams)
	if file != "" {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err != nil { // opening it fails as well, and says so
		v.c.Config().Logger.Debug("no directory for the views", "reason", err)
	}
	return streams, file, nil
}

// busID names a bus by its streams.
func busID(streams []string) string {
	sum := sha256.Sum256(fmt.Append(nil, streams))
	return hex.EncodeToString(sum[:8])
}

// purged yields the runs that were purged.
func (v *views) purged(ctx context.Context) iter.Seq2[events.Run, error] {
	return func(yield func(events.Run, error) bool) {
		runs, err := tombstones.Runs(ctx, v.c.Config().KV, v.c.Log.Shards())
		if errors.Is(err, journal.ErrDenied) {
			return // searches leave out what the log has not
		} else if err != nil {
			yield(events.Run{}, err)
			return
		}
		for run := range runs {
			if !yield(run, nil) {
				return
			}
		}
	}
}

// use calls do with the store once it has what the log has, or after two seconds, and returns what the store
// lacks. Without a store it does nothing.
func (v *views) use(ctx context.Context, do func(s *store.Store) error) (behind string, err error) {
	if v.alone {
		return "", v.useAlone(ctx, do)
	}
	v.ask()
	wait, stop := context.WithTimeout(ctx, follow.WaitAtMost)
	defer stop()
	for {
		v.mu.RLock()
		if o := v.opened; o != nil {
			defer v.mu.RUnlock()
			lacks := o.follower.Wait(wait)
			return lacks.String(), do(o.Store)
		}
		changed := v.changed
		v.mu.RUnlock()
		select {
		case <-changed:
		case <-wait.Done():
			return follow.Behind{Unknown: true}.String(), ctx.Err()
		}
	}
}

// useAlone opens the store for one request.
func (v *views) useAlone(ctx context.Context, do func(s *store.Store) error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	o, err := v.open(ctx)
	if err != nil {
		return err
	}
	if err = o.follower.CatchUp(ctx); err == nil {
		err = do(o.Store)
	}
	return errors.Join(err, o.Close())
}

// failed is the error of a store that does not answer.
func failed(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return refusal.Fault("views: %w", err)
}

// unserved returns the pools without actors.
func (v *views) unserved(ctx context.Context) (pools []string) {
	for pool := range v.c.Unserved(ctx) {
		pools = append(pools, pool)
	}
	slices.Sort(pools)
	return pools
}
