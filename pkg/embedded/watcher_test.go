package embedded

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// TestWatcher: the token of the lock file lets a process read streams and hear the feed. It stores
// nothing, neither by itself nor by a reply subject that the server answers on.
func TestWatcher(t *testing.T) {
	dir := t.TempDir()
	srv := start(t, Options{Dir: dir, Listen: "127.0.0.1:0", Token: "secret"})
	held, err := Lookup(dir)
	require.NoError(t, err)
	operator := connect(t, srv)
	js, err := operator.JetStream()
	require.NoError(t, err)
	_, err = js.AddStream(&nats.StreamConfig{
		Name: "MOORE_0", Subjects: []string{"moore.0.>"}, AllowDirect: true, RePublish: &nats.RePublish{Source: ">", Destination: "feed.>"},
	})
	require.NoError(t, err)
	_, err = js.CreateKeyValue(&nats.KeyValueConfig{Bucket: "agents"})
	require.NoError(t, err)

	_, err = nats.Connect(srv.ClientURL(), nats.Token("guess"))
	require.ErrorIs(t, err, nats.ErrAuthorization)
	refused := make(chan error, 100)
	watcher, err := nats.Connect(srv.ClientURL(), nats.Token(held.Token), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	require.NoError(t, err)
	defer watcher.Close()
	feed, err := watcher.SubscribeSync("feed.>")
	require.NoError(t, err)
	chunks, err := watcher.SubscribeSync("chunk.>")
	require.NoError(t, err)
	asks, err := operator.SubscribeSync("catchup.>")
	require.NoError(t, err)
	require.NoError(t, watcher.Flush())

	_, err = js.Publish("moore.0.x", []byte("stored"))
	require.NoError(t, err)
	msg, err := feed.NextMsg(time.Minute)
	require.NoError(t, err)
	require.Equal(t, "stored", string(msg.Data))
	require.NoError(t, operator.Publish("chunk.x", nil))
	_, err = chunks.NextMsg(time.Minute)
	require.NoError(t, err)
	require.NoError(t, watcher.Publish("catchup.x", nil))
	_, err = asks.NextMsg(time.Minute)
	require.NoError(t, err)
	read, err := watcher.Request("$JS.API.DIRECT.GET.MOORE_0", []byte(`{"last_by_subj":"moore.0.x"}`), time.Minute)
	require.NoError(t, err)
	require.Equal(t, "stored", string(read.Data))

	for _, subject := range []string{
		"moore.0.default.waiting_for_human.acting.default.x", "$KV.agents.x", "feed.x", "chunk.x", "timers.set.x", "question.ask.x", "$JS.ACK.MOORE_0.x",
		"$JS.API.STREAM.DELETE.MOORE_0", "$JS.API.STREAM.PURGE.MOORE_0", "$JS.API.STREAM.UPDATE.MOORE_0", "$JS.API.STREAM.CREATE.X",
		"$JS.API.CONSUMER.CREATE.MOORE_0", "$JS.API.CONSUMER.DURABLE.CREATE.MOORE_0.x", "$JS.API.CONSUMER.MSG.NEXT.MOORE_0.x",
	} {
		require.NoError(t, watcher.Publish(subject, []byte("{}")))
		require.ErrorContains(t, <-refused, subject)
	}
	for _, reply := range []string{"moore.0.forged", "$KV.agents.forged", "feed.moore.0.forged", "chunk.forged"} {
		require.NoError(t, watcher.PublishMsg(&nats.Msg{Subject: "$JS.API.DIRECT.GET.MOORE_0", Reply: reply, Data: []byte(`{"last_by_subj":"moore.0.x"}`)}))
	}
	_, err = watcher.Request("$JS.API.DIRECT.GET.MOORE_0", []byte(`{"last_by_subj":"moore.0.x"}`), time.Minute)
	require.NoError(t, err)
	for _, stream := range []string{"MOORE_0", "KV_agents"} {
		info, err := js.StreamInfo(stream)
		require.NoError(t, err)
		require.EqualValues(t, map[string]uint64{"MOORE_0": 1}[stream], info.State.LastSeq, stream)
	}
}
