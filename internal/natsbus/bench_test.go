package natsbus

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
)

func BenchmarkAppend(b *testing.B) {
	bus := embeddedBus(b, 1)
	run := journaltest.NewRun(b, bus)
	body := make([]byte, 700)
	var last uint64
	for b.Loop() {
		seq, err := bus.Append(context.Background(), run, last, entryTo(run, events.Nobody, events.DefaultPool, body))
		require.NoError(b, err)
		last = seq
	}
}

// BenchmarkAppendMany has many runs appended to at once.
func BenchmarkAppendMany(b *testing.B) {
	bus := embeddedBus(b, 1)
	body := make([]byte, 700)
	b.SetParallelism(64)
	b.ReportAllocs()
	b.RunParallel(func(each *testing.PB) {
		run := journaltest.NewRun(b, bus)
		var last uint64
		for each.Next() {
			seq, err := bus.Append(context.Background(), run, last, entryTo(run, events.Nobody, events.DefaultPool, body))
			if err != nil {
				b.Error(err)
				return
			}
			last = seq
		}
	})
}

func entryTo(run events.Run, to events.State, pool string, body []byte) journal.Entry {
	return journal.Entry{Subject: events.Subject{Run: run, From: events.Planning, To: to, Pool: pool}, Body: body}
}

func BenchmarkRead40(b *testing.B) {
	bus := embeddedBus(b, 1)
	run := journaltest.NewRun(b, bus)
	texts := make([]string, 40)
	for i := range texts {
		texts[i] = fmt.Sprintf("%700d", i)
	}
	journaltest.AppendAll(b, bus, run, texts...)
	for b.Loop() {
		recs, err := journaltest.Collect(bus.Read(context.Background(), run, 0))
		require.NoError(b, err)
		require.Len(b, recs, 40)
	}
}

// BenchmarkConsume delivers and acknowledges a backlog.
func BenchmarkConsume(b *testing.B) {
	for _, shards := range []int{1, 3} {
		for _, slots := range []int{1, 16, 1000} {
			b.Run(fmt.Sprintf("%d shards %d slots", shards, slots), func(b *testing.B) {
				bus := embeddedBus(b, shards)
				fillPool(b, bus, b.N)
				ctx, cancel := context.WithCancel(context.Background())
				var left sync.WaitGroup
				left.Add(b.N)
				b.ResetTimer()
				go func() { left.Wait(); cancel() }()
				err := bus.Consume(ctx, journal.Inbox{States: []events.State{events.Acting}, Pool: "web"}, slots, func(d journal.Delivery) {
					if d.Ack() == nil && d.Attempt() == 1 {
						left.Done()
					}
				})
				require.NoError(b, err)
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "deliveries/s")
			})
		}
	}
}

func fillPool(b *testing.B, bus *Bus, n int) {
	var all sync.WaitGroup
	for w := range 16 {
		all.Go(func() {
			for i := w; i < n; i += 16 {
				run := journaltest.NewRun(b, bus)
				if _, err := bus.Append(context.Background(), run, 0, entryTo(run, events.Acting, "web", make([]byte, 700))); err != nil {
					b.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// BenchmarkFollow measures the time from an append to the record at a follower,
// one record at a time.
func BenchmarkFollow(b *testing.B) {
	for way, open := range map[string]func(testing.TB, int) *Bus{"in process": embeddedBus, "over TCP": newBus} {
		b.Run(way, func(b *testing.B) {
			bus := open(b, 1)
			run := journaltest.NewRun(b, bus)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			came := make(chan time.Time, 1)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for range bus.Follow(ctx, 0, journal.Filter{}, 0) {
					came <- time.Now()
				}
			}()
			var last uint64
			var waits []time.Duration
			for b.Loop() {
				began := time.Now()
				seq, err := bus.Append(ctx, run, last, entryTo(run, events.Nobody, events.DefaultPool, make([]byte, 700)))
				require.NoError(b, err)
				last = seq
				waits = append(waits, (<-came).Sub(began))
			}
			slices.Sort(waits)
			b.ReportMetric(float64(waits[len(waits)/2].Microseconds()), "µs-median")
			cancel()
			<-came
			<-ended
		})
	}
}
