package permissions

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

var update = flag.Bool("update", false, "write deploy/nats/permissions.conf anew")

// TestDeployed: the deployed file is what the generator makes of the transition table.
func TestDeployed(t *testing.T) {
	t.Parallel()
	c, err := New(Layout{Pools: []string{"web"}}, nil)
	require.NoError(t, err)
	c.Command = "moorebus init --print-permissions --pools web"
	var text strings.Builder
	require.NoError(t, c.WriteConf(&text))
	file := filepath.Join("..", "..", "deploy", "nats", "permissions.conf")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(text.String()), 0o644))
	}
	shipped, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(shipped), text.String(), "run: go test ./internal/permissions -update")
}

// TestTableDecides: a new row of the table is a new edge for its owner.
func TestTableDecides(t *testing.T) {
	t.Parallel()
	spec := reducer.DefaultTable().Spec()
	spec.Rows = append(spec.Rows, reducer.Row{From: events.Observing, Event: "Rested", To: events.WaitingForUser})
	table, err := reducer.NewTable(spec)
	require.NoError(t, err)
	edge := "moore.*.*.observing.waiting_for_user.default.*"
	for _, u := range users(t, Layout{Table: table}) {
		require.Equal(t, u.Name == Observer, slices.Contains(u.Publish, edge), u.Name)
	}
	for _, u := range users(t, Layout{}) {
		require.NotContains(t, u.Publish, edge)
	}
}

func users(t *testing.T, l Layout) []User {
	t.Helper()
	all, err := Users(l)
	require.NoError(t, err)
	return all
}

// TestShards: every shard's stream and consumers are named.
func TestShards(t *testing.T) {
	t.Parallel()
	planner := users(t, Layout{Shards: 2})[0]
	for _, subject := range []string{
		"$JS.API.DIRECT.GET.MOORE_0", "$JS.API.DIRECT.GET.MOORE_1", "$JS.API.CONSUMER.MSG.NEXT.MOORE_1.planning", "$JS.ACK.MOORE_1.planning.>",
	} {
		require.Contains(t, planner.Publish, subject)
	}
	require.NotContains(t, planner.Publish, "$JS.API.DIRECT.GET.MOORE_2")
}

func TestBadLayout(t *testing.T) {
	t.Parallel()
	_, err := New(Layout{Pools: []string{"a.b"}}, nil)
	require.ErrorContains(t, err, `"a.b"`)
	_, err = New(Layout{Shards: -1}, nil)
	require.ErrorContains(t, err, "negative")
	_, err = New(Layout{}, map[string]string{Operator: "U"})
	require.ErrorContains(t, err, "planner has no key")
	_, err = New(Layout{Pools: []string{"a-b", "a_b"}}, nil)
	require.ErrorContains(t, err, "MOOREBUS_ACTOR_A_B_PASSWORD")
}

// bcryptOfHashed is the bcrypt hash of "hashed".
const bcryptOfHashed = "$2a$04$jTJwascbgT9ZLu1ZytAmyuNd/bonGb9JfXxgMSl1rtUNKt4u8cmGu"

// TestPasswords runs a server whose users have passwords from its environment.
func TestPasswords(t *testing.T) {
	dir := t.TempDir()
	c, err := New(layout, nil)
	require.NoError(t, err)
	for _, u := range append(c.Users, c.Operator) {
		t.Setenv(PasswordVariable(u.Name), "secret-of-"+u.Name)
	}
	t.Setenv(PasswordVariable(Tap), bcryptOfHashed)
	url := serve(t, dir, c)
	connect := func(user, password string) error {
		conn, err := natsconn.Connect(t.Context(), natsconn.ConnectOptions{
			URL: url, User: user, Password: password, InboxPrefix: "_INBOX_" + user, Logger: quiet,
		})
		if err != nil {
			return err
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err = natsbus.Open(ctx, conn, natsbus.Options{Logger: quiet})
		require.ErrorIs(t, err, journal.ErrNotReady, "%s is let in, and there is nothing yet", user)
		return nil
	}
	require.NoError(t, connect("actor_web", "secret-of-actor_web"))
	require.NoError(t, connect(Tap, "hashed"))
	require.ErrorIs(t, connect(Planner, "secret-of-observer"), nats.ErrAuthorization)
	require.ErrorIs(t, connect("nobody", ""), nats.ErrAuthorization)
}

// TestKeys: seed files are readable by their owner only, and never change.
func TestKeys(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "keys")
	first, err := Keys(dir, Layout{})
	require.NoError(t, err)
	require.Len(t, first, 8)
	again, err := Keys(dir, Layout{Pools: []string{"web"}})
	require.NoError(t, err)
	require.Len(t, again, 9)
	for name, key := range first {
		require.Equal(t, key, again[name])
		info, err := os.Stat(KeyFile(dir, name))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode())
	}
	require.NoError(t, os.WriteFile(KeyFile(dir, Tap), []byte("nonsense"), 0o600))
	_, err = Keys(dir, Layout{})
	require.ErrorContains(t, err, "key of tap")
	text, err := os.ReadFile(KeyFile(dir, Tap))
	require.NoError(t, err)
	require.Equal(t, "nonsense", string(text))
}

// TestLatePool: missing parts of a pool that is not set up yet are reported at once.
func TestLatePool(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	with := Layout{Pools: append([]string{"late"}, layout.Pools...)}
	r := &rig{keys: filepath.Join(dir, "keys")}
	keys, err := Keys(r.keys, with)
	require.NoError(t, err)
	c, err := New(with, keys)
	require.NoError(t, err)
	r.url = serve(t, dir, c)
	r.operator = r.connect(t, Operator, nil)
	require.NoError(t, natsbus.Init(t.Context(), r.operator, natsbus.InitOptions{Memory: true}))
	actor := r.open(t, "actor_late")
	began := time.Now()
	require.ErrorIs(t, announce.NewDirectory(actor, nil).Announce(t.Context(), "late", "i", nil), journal.ErrNotReady)
	_, err = actor.PutBlob(t.Context(), "late", []byte("x"))
	require.ErrorIs(t, err, journal.ErrDenied, "nobody but the operator makes buckets")
	_, err = actor.Blob(t.Context(), events.Ref{Bucket: "results_late", Key: "k"})
	require.ErrorIs(t, err, journal.ErrNotFound)
	require.Less(t, time.Since(began), patience/4)

	require.NoError(t, natsbus.Init(t.Context(), r.operator, natsbus.InitOptions{Pools: []string{"late", "unknown"}, Memory: true}))
	require.NoError(t, announce.NewDirectory(actor, nil).Announce(t.Context(), "late", "i", []events.ToolSpec{{Name: "x", Pool: "late"}}))
	gateway := r.open(t, Gateway)
	tools, err := announce.NewDirectory(gateway, nil).Tools(t.Context())
	require.NoError(t, err, "a pool that the permissions do not name hides no other")
	require.Len(t, tools, 1)
	pools, err := announce.NewDirectory(gateway, nil).Pools(t.Context())
	require.NoError(t, err, "nor does it stop the watch over the others")
	require.Equal(t, []announce.Pool{{Name: "default"}, {Name: "late", Living: true, Tools: tools}}, pools)
}

// TestPoolWithoutPermissions: the gateway ignores a pool that is not in its permissions, and
// serves the others. e2e adds such a pool to a running server.
func TestPoolWithoutPermissions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	require.NoError(t, natsbus.Init(t.Context(), r.operator, natsbus.InitOptions{Pools: []string{"late"}, Memory: true}))
	pools, err := announce.NewDirectory(r.open(t, Gateway), nil).Pools(t.Context())
	require.NoError(t, err, "a pool that the permissions do not name hides no other")
	require.Equal(t, []announce.Pool{{Name: events.AgentsPool}, {Name: "default"}, {Name: "gpu"}, {Name: "web"}}, pools)
}
