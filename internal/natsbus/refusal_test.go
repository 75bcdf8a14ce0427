package natsbus

import (
	"context"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/feature/rows"
	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/natsbus/pull"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// A call does not fail because the server refuses what another caller of the connection
// publishes.
func TestOthersRefusals(t *testing.T) {
	t.Parallel()
	operator, worker := guardedServer(t, "$JS.API.STREAM.INFO.>")
	require.NoError(t, Init(t.Context(), operator, InitOptions{}))
	bus, err := Open(t.Context(), worker, Options{Logger: quiet, RequestTimeout: time.Minute})
	require.NoError(t, err)
	for _, subject := range []string{"$JS.API.INFO", "$JS.API.STREAM.CREATE.X"} {
		refused := make(chan error, 1)
		release := bus.OnRefused(subject, func(err error) { refused <- err })
		err = bus.Do(t.Context(), "STREAM.INFO.MOORE_0", func(ctx context.Context) error {
			require.NoError(t, worker.Publish(subject, nil))
			require.ErrorIs(t, <-refused, journal.ErrDenied)
			return ctx.Err()
		})
		require.NoError(t, err, subject)
		release()
	}
}

// A process makes a missing bucket with the permission for that alone, and it is the bucket
// that `moorebus init` would have made.
func TestBucketsAreMadeWithoutAskingForTheAccount(t *testing.T) {
	t.Parallel()
	operator, worker := guardedServer(t, "$KV.>", "$JS.API.STREAM.INFO.>", "$JS.API.STREAM.CREATE.>")
	require.NoError(t, Init(t.Context(), operator, InitOptions{}))
	js, err := jetstream.New(operator)
	require.NoError(t, err)
	made := func(name string) jetstream.StreamConfig {
		stream, err := js.Stream(t.Context(), kvStreamPrefix+name)
		require.NoError(t, err)
		return stream.CachedInfo().Config
	}
	bus, err := Open(t.Context(), worker, Options{Logger: quiet, RequestTimeout: time.Minute})
	require.NoError(t, err)
	for _, of := range rows.Buckets(nil) {
		want := made(of.Name)
		require.NoError(t, js.DeleteKeyValue(t.Context(), of.Name))
		_, err := bus.Put(t.Context(), of, kv.Item{Key: "key", Value: []byte("value")})
		require.NoError(t, err)
		require.Equal(t, want, made(of.Name))
		require.NoError(t, bus.createBucket(t.Context(), of), "it is there already")
	}
}

// A worker that has consumed outlives a refusal: its user may get the permission back.
func TestConsumerOutlivesRefusals(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	inbox := journal.Inbox{States: []events.State{events.Acting}, Pool: "web"}
	durables, err := checkInbox(inbox)
	require.NoError(t, err)
	source := bus.sources(durables)[0]
	prepare, times := source.Prepare, 0
	source.Prepare = func(ctx context.Context) error {
		if times++; times == 2 {
			return &api.DeniedError{Subject: "$JS.API.CONSUMER.INFO"}
		}
		return prepare(ctx)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- pull.Run(ctx, bus.Client, []pull.Source{source}, 1, func(msg *nats.Msg) {
			if msg.Ack() == nil {
				got <- string(msg.Data)
			}
		})
	}()
	deliver := func(body string) {
		t.Helper()
		run := journaltest.NewRun(t, bus)
		_, err := bus.Append(t.Context(), run, 0, entryTo(run, events.Acting, "web", []byte(body)))
		require.NoError(t, err)
		for have := ""; have != body; { // a consumer that was made anew delivers all again
			select {
			case have = <-got:
			case err := <-ended:
				require.NoError(t, err)
				require.Fail(t, "pulling ended")
			case <-time.After(patience):
				require.Fail(t, "no delivery")
			}
		}
	}
	deliver("before")
	require.NoError(t, bus.JS.DeleteConsumer(t.Context(), source.Stream, source.Consumer))
	deliver("after")
	cancel()
	require.NoError(t, <-ended)
	require.GreaterOrEqual(t, times, 3)
}
