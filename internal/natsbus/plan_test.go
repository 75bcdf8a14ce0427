package natsbus

import (
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// TestPlan: a plan changes nothing, and says just what Init then does.
func TestPlan(t *testing.T) {
	t.Parallel()
	ctx, conn := t.Context(), inProcess(t, startServer(t, embedded.Options{}))
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	streams := func() (all []string) {
		names := js.StreamNames(ctx)
		for name := range names.Name() {
			all = append(all, name)
		}
		require.NoError(t, names.Err())
		return all
	}
	plan := func(o InitOptions) []Change {
		t.Helper()
		changes, err := Plan(ctx, conn, o)
		require.NoError(t, err)
		return changes
	}
	whole := InitOptions{Shards: 2, Pools: []string{"web", events.AgentsPool}, Buckets: entrystore.Buckets(entrystore.Owner{Namespace: "default", Agent: "keeper"}), Sync: SyncAlways}
	all := plan(whole)
	require.Empty(t, streams())
	made := map[string]bool{}
	for _, c := range all {
		require.Equal(t, "create", c.Action, c.Thing)
		made[c.Thing] = true
	}
	require.NoError(t, Init(ctx, conn, whole))
	for _, name := range streams() {
		require.True(t, made["stream "+name], name)
		stream, err := js.Stream(ctx, name)
		require.NoError(t, err)
		names := stream.ConsumerNames(ctx)
		for consumer := range names.Name() {
			require.True(t, made["consumer "+consumer+" of "+name], consumer)
			delete(made, "consumer "+consumer+" of "+name)
		}
		require.NoError(t, names.Err())
		delete(made, "stream "+name)
	}
	require.Empty(t, made, "and no more")
	require.Empty(t, plan(whole))
	require.Empty(t, plan(InitOptions{}), "what is not named stays")

	more := InitOptions{Pools: []string{"gpu"}, AckWait: 20 * time.Second, MaxBytes: 1 << 20, Sync: SyncRelaxed}
	changes := plan(more)
	require.Contains(t, changes, Change{Action: "update", Thing: "stream MOORE_1", Settings: []string{"max_bytes: -1 → 1048576"}})
	require.Contains(t, changes, Change{Action: "update", Thing: "stream MOORE_0", Settings: []string{"max_bytes: -1 → 1048576", `metadata moorebus_sync: "always" → "relaxed"`}})
	require.Contains(t, changes, Change{Action: "update", Thing: "consumer planning of MOORE_0", Settings: []string{"ack_wait: 15000000000 → 20000000000"}})
	require.Contains(t, changes, Change{Action: "create", Thing: "consumer acting_gpu of MOORE_0"})
	require.Contains(t, changes, Change{Action: "create", Thing: "stream KV_tools_gpu"})
	require.NoError(t, Init(ctx, conn, more))
	require.Empty(t, plan(more))

	// What somebody else has changed Init changes back.
	stream, err := js.Stream(ctx, "KV_agents")
	require.NoError(t, err)
	cfg := stream.CachedInfo().Config
	cfg.AllowDirect, cfg.MaxMsgsPerSubject, cfg.AllowAtomicPublish = false, 1, true
	_, err = js.UpdateStream(ctx, cfg)
	require.NoError(t, err)
	require.Equal(t, []Change{{Action: "update", Thing: "stream KV_agents", Settings: []string{"allow_atomic: true → none", "allow_direct: false → true", "max_msgs_per_subject: 1 → 5"}}}, plan(InitOptions{}))

	_, err = Plan(ctx, conn, InitOptions{Shards: 3})
	require.ErrorContains(t, err, "the log has 2 shards")
}
