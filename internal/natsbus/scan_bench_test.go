package natsbus

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// BenchmarkScan reads a whole shard, in process and over TCP. An operation is a
// record.
func BenchmarkScan(b *testing.B) {
	const runs, each = 10_000, 10
	for way, open := range map[string]func(testing.TB, int) *Bus{"in process": embeddedBus, "over TCP": newBus} {
		bus := open(b, 1)
		fillRuns(b, bus, runs, each)
		for name, filter := range map[string]journal.Filter{
			"all": {}, "namespace": {Namespace: events.DefaultNamespace}, "edge": {From: events.Planning},
		} {
			b.Run(way+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for n := 0; n < b.N; {
					got := 0
					for _, err := range bus.Scan(b.Context(), 0, filter, 0) {
						require.NoError(b, err)
						got++
					}
					require.Equal(b, runs*each, got)
					n += got
				}
				b.ReportMetric(float64(max(b.N, runs*each))/b.Elapsed().Seconds(), "records/s")
			})
		}
	}
}

// fillRuns stores records of 700 bytes, run after run, on subjects and under
// conditions like those of events. The stream has to be empty, so that every
// sequence number is known before it is given.
func fillRuns(tb testing.TB, bus *Bus, runs, each int) {
	tb.Helper()
	js, err := jetstream.New(bus.conn, jetstream.WithPublishAsyncMaxPending(256))
	require.NoError(tb, err)
	var stored []jetstream.PubAckFuture
	for range runs {
		run := journaltest.NewRun(tb, bus)
		var last uint64
		for i := range each {
			msg := nats.NewMsg(events.Subject{Run: run, From: events.Planning, To: events.Nobody, Pool: fmt.Sprint("p", i)}.String())
			msg.Header[headerExpectSeq] = []string{strconv.FormatUint(last, 10)}
			msg.Header[headerExpectSubject] = []string{run.Filter()}
			msg.Data = make([]byte, 700)
			future, err := js.PublishMsgAsync(msg, jetstream.WithStallWait(patience))
			require.NoError(tb, err)
			stored = append(stored, future)
			last = uint64(len(stored))
		}
	}
	for i, future := range stored {
		select {
		case ack := <-future.Ok():
			require.EqualValues(tb, i+1, ack.Sequence)
		case err := <-future.Err():
			require.NoError(tb, err)
		}
	}
}
