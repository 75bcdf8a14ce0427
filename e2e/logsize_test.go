package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// The bounds of the log, as multiples of the conversations' own size: the
// compact JSON of the messages of the last request of each.
const (
	maxStored = 3.0
	maxOnDisk = 1.0
)

// TestLogSize compares what the log holds of the conversations with what they
// are: bodies and headers as stored, and full blocks on the disk, which are
// compressed. To get full blocks from a few conversations their messages are
// stored again in a stream of the same settings, as often as it takes.
func TestLogSize(t *testing.T) {
	all := conversations(t)
	c := startCluster(t, setup{tools: toolNames(all)})
	transcript := 0
	for _, p := range c.stage().play(t, all, nil) {
		transcript += p.last
	}
	stored := readLog(t, c.busURL())
	size := 0
	for _, m := range stored {
		size += len(m.Data) + headerSize(m.Header)
	}
	ratio := float64(size) / float64(transcript)
	t.Logf("log size: %d conversations, %d bytes of messages; %d events, %d bytes of bodies and headers: %.2f times (at most %.0f)",
		len(all), transcript, len(stored), size, ratio, maxStored)

	compressed := copyLog(t, c, stored)
	disk := compressed.onDisk * float64(compressed.records) / float64(transcript)
	t.Logf("log size: full blocks take %.3f of what was stored: %.2f times (at most %.0f)", compressed.onDisk, disk, maxOnDisk)
	require.LessOrEqual(t, ratio, maxStored)
	require.LessOrEqual(t, disk, maxOnDisk)
}

// readLog returns every message of the first shard's stream as it is stored.
func readLog(t *testing.T, url string) []*nats.Msg {
	t.Helper()
	conn := connect(t, url)
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), "MOORE_0")
	require.NoError(t, err)
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	consumer, err := stream.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{})
	require.NoError(t, err)
	var all []*nats.Msg
	for uint64(len(all)) < info.State.Msgs {
		batch, err := consumer.Fetch(500, jetstream.FetchMaxWait(2*time.Second))
		require.NoError(t, err)
		for m := range batch.Messages() {
			all = append(all, &nats.Msg{Subject: m.Subject(), Header: m.Headers(), Data: m.Data()})
		}
		require.NoError(t, batch.Error())
	}
	return all
}

// connect opens a connection of the test's own.
func connect(t *testing.T, url string) *nats.Conn {
	t.Helper()
	conn, err := nats.Connect(url)
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return conn
}

// headerSize is the size of headers as they are stored.
func headerSize(h nats.Header) int {
	if len(h) == 0 {
		return 0
	}
	size := len("NATS/1.0\r\n\r\n")
	for key, values := range h {
		for _, value := range values {
			size += len(key) + len(": \r\n") + len(value)
		}
	}
	return size
}

// compression is how full blocks look on the disk.
type compression struct {
	// onDisk is the size of full blocks there, as a part of what they hold.
	onDisk float64
	// records is what one log takes before compression, with the store's own
	// fields.
	records uint64
}

// fullBlocks is how many there must be to measure.
const fullBlocks = 2

// copyLog stores the messages again and again in a stream with the settings of
// the log's own until there are full blocks, and measures those.
func copyLog(t *testing.T, c *cluster, stored []*nats.Msg) compression {
	t.Helper()
	js, err := jetstream.New(connect(t, c.busURL()))
	require.NoError(t, err)
	log, err := js.Stream(t.Context(), "MOORE_0")
	require.NoError(t, err)
	settings := log.CachedInfo().Config
	settings.Name, settings.Subjects, settings.RePublish, settings.Metadata = "COPY", []string{"copie.>"}, nil, nil
	stream, err := js.CreateStream(t.Context(), settings)
	require.NoError(t, err)
	blocks := filepath.Join(c.store, "jetstream", "$G", "streams", "COPY", "msgs", "*.blk")
	var first uint64
	for {
		publishCopies(t, js, stored)
		info, err := stream.Info(t.Context())
		require.NoError(t, err)
		if first == 0 {
			first = info.State.Bytes
		}
		files, err := filepath.Glob(blocks)
		require.NoError(t, err)
		if len(files) > fullBlocks {
			return compression{onDisk: awaitCompressed(t, files, info.State.Bytes), records: first}
		}
	}
}

// publishCopies stores messages under subjects of the same length. Headers that
// the server would obey get names of the same length that it does not know.
func publishCopies(t *testing.T, js jetstream.JetStream, stored []*nats.Msg) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTime)
	defer cancel()
	for _, m := range stored {
		copied := &nats.Msg{Subject: "copie." + strings.TrimPrefix(m.Subject, "moore."), Data: m.Data, Header: nats.Header{}}
		for key, values := range m.Header {
			copied.Header["M"+key[1:]] = values
		}
		_, err := js.PublishMsgAsync(copied)
		require.NoError(t, err)
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		require.NoError(t, ctx.Err())
	}
}

// awaitCompressed waits until the server has compressed every full block, which
// it does after it has begun the next one, and returns their size over that of
// what they hold. The block that is being written, the one with the largest
// number, is not compressed.
func awaitCompressed(t *testing.T, files []string, total uint64) float64 {
	t.Helper()
	newest := newestBlock(files)
	size := func(file string) int64 {
		info, err := os.Stat(file)
		require.NoError(t, err)
		return info.Size()
	}
	plain := int64(total) - size(newest)
	var full int64
	require.Eventually(t, func() bool {
		full = 0
		for _, file := range files {
			if file == newest {
				continue
			}
			if size(file) >= plain/int64(len(files)) {
				return false
			}
			full += size(file)
		}
		return true
	}, startTime, 10*time.Millisecond, "full blocks are not compressed")
	return float64(full) / float64(plain)
}

// newestBlock returns the block with the largest number.
func newestBlock(files []string) (newest string) {
	for _, file := range files {
		// Numbers have no leading zeros, so the longer name is the larger one.
		if len(file) > len(newest) || len(file) == len(newest) && file > newest {
			newest = file
		}
	}
	return newest
}
