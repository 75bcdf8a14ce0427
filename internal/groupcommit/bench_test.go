package groupcommit

import (
	"fmt"
	"testing"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// BenchmarkGather puts a batch together out of those who wait: of so many runs, each
// of which has two appends, so that half of them stay behind.
func BenchmarkGather(b *testing.B) {
	for _, runs := range []int{2, 16, 64, 256, journal.MaxBatch} {
		b.Run(fmt.Sprintf("runs=%d", runs), func(b *testing.B) {
			g := New(nil, 2)
			waiting := make([]*member, 0, 2*runs)
			for range 2 {
				for i := range runs {
					run := events.NewRun(events.DefaultNamespace, fmt.Sprintf("019325a0-0000-7000-8000-%012d", i), 1)
					waiting = append(waiting, &member{Pending: Pending{Run: run, Entries: []journal.Entry{{Body: make([]byte, 700)}}}})
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				g.queue = append(g.queue[:0], waiting...)
				g.gather()
				if len(g.batch) != runs || len(g.queue) != runs {
					b.Fatalf("%d go and %d stay, of %d runs", len(g.batch), len(g.queue), runs)
				}
				g.clear()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*runs), "ns/append")
		})
	}
}

// Waiting returns how many appends wait for the next round.
func (g *Group) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.queue)
}
