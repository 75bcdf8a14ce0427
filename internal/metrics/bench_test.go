package metrics_test

import (
	"context"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/metrics"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// BenchmarkCost measures what counting costs the loop of deliveries and appends: a thousand
// runs at a worker that counts, and at one that does not, in turns, on one server that does
// not flush. The time is that of the processors, server included.
func BenchmarkCost(b *testing.B) {
	server, err := embedded.Start(b.Context(), embedded.Options{Dir: b.TempDir(), Logger: quiet})
	require.NoError(b, err)
	b.Cleanup(server.Shutdown)
	conn, err := server.Connect()
	require.NoError(b, err)
	b.Cleanup(conn.Close)
	require.NoError(b, natsbus.Init(b.Context(), conn, natsbus.InitOptions{Memory: true}))
	const runs = 1000
	registry := metrics.New()
	loop := func(counting bool) time.Duration {
		var o natsbus.Options
		stores := runlog.Options{}
		if counting {
			o.Meter, stores.Meter, stores.Appended = registry, registry, registry.Appended
		}
		o.Logger = quiet
		conn, err := server.Connect()
		require.NoError(b, err)
		defer conn.Close()
		bus, err := natsbus.Open(b.Context(), conn, o)
		require.NoError(b, err)
		stores.Log = bus
		store := runlog.New(stores)
		done := make(chan struct{}, runs)
		w, err := worker.New(worker.Config{
			Role: "planner", Base: worker.Base{Instance: "b", Store: store, Queue: bus, Feed: bus, Logger: quiet},
			Inboxes: []journal.Inbox{{States: []events.State{events.Planning}, Pool: events.DefaultPool}},
			Handlers: map[effects.Kind]worker.Handler{effects.KindPlan: worker.HandlerFunc(func(events.Run, *reducer.Memory, effects.Effect) worker.Work {
				return func(context.Context) worker.Result {
					done <- struct{}{}
					return worker.Done(&events.LLMFinalAnswer{MessageID: "m", Reply: events.Reply{Content: "It is done.", Model: "m"}})
				}
			})},
		})
		require.NoError(b, err)
		ctx, stop := context.WithCancel(b.Context())
		ended := make(chan error, 1)
		runtime.GC()
		began := processors(b)
		go func() { ended <- w.Run(ctx) }()
		for range runs {
			start(b, store)
		}
		for range runs {
			<-done
		}
		stop()
		require.NoError(b, <-ended)
		return processors(b) - began
	}
	loop(true)
	var ratios []float64
	var counted, bare time.Duration
	for b.Loop() {
		with, without := loop(true), loop(false)
		without += loop(false)
		with += loop(true)
		ratios = append(ratios, float64(with)/float64(without))
		counted, bare = counted+with, bare+without
	}
	slices.Sort(ratios)
	b.ReportMetric(100*(ratios[len(ratios)/2]-1), "%-median")
	b.ReportMetric(100*(ratios[len(ratios)/4]-1), "%-quarter")
	b.ReportMetric(100*(ratios[len(ratios)*3/4]-1), "%-three-quarters")
	b.ReportMetric(100*(float64(counted)/float64(bare)-1), "%-sum")
	b.ReportMetric(float64(bare.Microseconds())/float64(2*runs*len(ratios)), "µs/run")
}

func start(b *testing.B, store *runlog.Store) {
	run := store.Acquire(store.Place(events.DefaultNamespace, store.NewID()))
	defer store.Release(run)
	run.Lock()
	defer run.Unlock()
	begin := reducertest.StartOf("find it", events.ModeTask)
	begin.TableHash = store.Machine().Table().Hash()
	_, err := run.Commit(b.Context(), runlog.Stamp{Source: "moorebus/test/1"}, func(*reducer.Memory) ([]runlog.Draft, error) {
		return []runlog.Draft{{Origin: events.Idle, Payload: begin}}, nil
	})
	require.NoError(b, err)
}

// processors returns the time that this process has used of all processors.
func processors(b *testing.B) time.Duration {
	var used syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
