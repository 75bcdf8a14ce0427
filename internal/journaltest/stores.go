package journaltest

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
)

// Directory tests [journal.Directory], but for how announcements end. What is opened are
// the directories of two processes on one bus.
func Directory(t *testing.T, open func(t *testing.T) (journal.Directory, journal.Directory)) {
	dir, other := open(t)
	spec := func(name, pool, description string) events.ToolSpec {
		return events.ToolSpec{Name: name, Description: description, Schema: json.RawMessage(`{"type":"object"}`), Effect: "pure", Pool: pool, Risk: "low"}
	}
	web, db := NewToken(t), NewToken(t)
	// named returns the tools that this test announced.
	named := func(t *testing.T) []events.ToolSpec {
		t.Helper()
		all, err := dir.Tools(bounded(t))
		require.NoError(t, err)
		var own []events.ToolSpec
		for _, tool := range all {
			if tool.Pool == web || tool.Pool == db {
				own = append(own, tool)
			}
		}
		return own
	}
	t.Run("nothing", func(t *testing.T) { require.Empty(t, named(t)) })
	t.Run("tools", func(t *testing.T) {
		ctx := bounded(t)
		require.NoError(t, dir.Announce(ctx, web, "host-1:77/x", []events.ToolSpec{spec("search", web, "finds"), spec("fetch", web, "gets")}))
		require.NoError(t, dir.Announce(ctx, web, "host-2", []events.ToolSpec{spec("search", web, "finds")}))
		require.NoError(t, dir.Announce(ctx, db, "host-1:77/x", []events.ToolSpec{spec("search", db, "finds rows")}))
		want := []events.ToolSpec{spec("fetch", web, "gets")}
		if web < db {
			want = append(want, spec("search", web, "finds"), spec("search", db, "finds rows"))
		} else {
			want = append(want, spec("search", db, "finds rows"), spec("search", web, "finds"))
		}
		require.Eventually(t, func() bool { return len(named(t)) == 3 }, patience, 20*time.Millisecond)
		require.Equal(t, want, named(t))
		require.NoError(t, dir.Announce(ctx, db, "host-1:77/x", []events.ToolSpec{spec("query", db, "asks")}))
		require.Equal(t, "query", named(t)[1].Name, "the same instance replaces what it said")
	})
	t.Run("pools", func(t *testing.T) {
		ctx, bare := bounded(t), NewToken(t)
		require.NoError(t, dir.Announce(ctx, bare, "host-3", nil))
		var pools []journal.Pool
		require.Eventually(t, func() bool {
			var err error
			pools, err = dir.Pools(ctx)
			require.NoError(t, err)
			return slices.Contains(pools, journal.Pool{Name: bare, Living: true})
		}, patience, 20*time.Millisecond, "an actor without tools serves its pool too")
		require.Subset(t, pools, []journal.Pool{{Name: web, Living: true}, {Name: db, Living: true}, {Name: events.DefaultPool}})
		require.True(t, slices.IsSortedFunc(pools, func(x, y journal.Pool) int { return strings.Compare(x.Name, y.Name) }))
	})
	t.Run("withdrawn", func(t *testing.T) {
		ctx, pool, provider := bounded(t), NewToken(t), NewToken(t)
		require.NoError(t, dir.Announce(ctx, pool, "host.1", []events.ToolSpec{spec("search", pool, "finds")}))
		require.NoError(t, dir.Announce(ctx, pool, "host-2", []events.ToolSpec{spec("fetch", pool, "gets")}))
		require.NoError(t, dir.AnnounceProviders(ctx, "host.1", []string{provider}))
		require.NoError(t, dir.Withdraw(ctx, pool, "host.1"))
		require.NoError(t, dir.WithdrawProviders(ctx, "host.1"))
		tools, err := dir.PoolTools(ctx, pool)
		require.NoError(t, err)
		require.Equal(t, []events.ToolSpec{spec("fetch", pool, "gets")}, tools, "others stay")
		providers, err := dir.Providers(ctx)
		require.NoError(t, err)
		require.NotContains(t, providers, provider)
		require.NoError(t, dir.Withdraw(ctx, pool, "host-2"))
		pools, err := dir.Pools(ctx)
		require.NoError(t, err)
		require.Contains(t, pools, journal.Pool{Name: pool}, "nobody serves it")
		require.NoError(t, dir.Withdraw(ctx, NewToken(t), "nobody"))
	})
	t.Run("withdrawn too late", func(t *testing.T) {
		ctx, pool, provider := bounded(t), NewToken(t), NewToken(t)
		for _, process := range []journal.Directory{dir, other} {
			require.NoError(t, process.Announce(ctx, pool, "host", []events.ToolSpec{spec("search", pool, "finds")}))
			require.NoError(t, process.AnnounceProviders(ctx, "host", []string{provider}))
		}
		announced := func() (tools []events.ToolSpec, providers []string) {
			tools, err := dir.PoolTools(ctx, pool)
			require.NoError(t, err)
			providers, err = dir.Providers(ctx)
			require.NoError(t, err)
			return tools, providers
		}
		require.NoError(t, dir.Withdraw(ctx, pool, "host"))
		require.NoError(t, dir.WithdrawProviders(ctx, "host"))
		tools, providers := announced()
		require.Len(t, tools, 1, "the other process announces them")
		require.Contains(t, providers, provider)
		require.NoError(t, other.Withdraw(ctx, pool, "host"))
		require.NoError(t, other.WithdrawProviders(ctx, "host"))
		tools, providers = announced()
		require.Empty(t, tools)
		require.NotContains(t, providers, provider)
	})
	t.Run("offers", func(t *testing.T) {
		ctx, tool := bounded(t), NewToken(t)
		before, err := dir.Offers(ctx)
		if err != nil {
			require.ErrorIs(t, err, journal.ErrNotReady)
		}
		one := journal.Offers{First: map[string]string{tool: web}, Providers: []string{"p"}, Revision: before.Revision}
		require.NoError(t, dir.PutOffers(ctx, one))
		require.ErrorIs(t, dir.PutOffers(ctx, one), journal.ErrConflict)
		after, err := dir.Offers(ctx)
		require.NoError(t, err)
		require.Equal(t, one.First, after.First)
		require.Equal(t, one.Providers, after.Providers)
		after.First = map[string]string{tool: db}
		require.NoError(t, dir.PutOffers(ctx, after))
		last, err := dir.Offers(ctx)
		require.NoError(t, err)
		require.Equal(t, db, last.First[tool])
	})
	t.Run("refusals", func(t *testing.T) {
		require.Error(t, dir.Announce(bounded(t), "*", "i", nil))
		require.Error(t, dir.Announce(bounded(t), web, "i", []events.ToolSpec{spec("search", db, "of another pool")}))
		require.ErrorContains(t, dir.Announce(bounded(t), web, "i", []events.ToolSpec{spec("moorebus_search", web, "")}), "are Moorebus' own")
	})
	t.Run("providers", func(t *testing.T) {
		ctx, one, two := bounded(t), NewToken(t), NewToken(t)
		require.NoError(t, dir.AnnounceProviders(ctx, "a", []string{two, one}))
		require.NoError(t, dir.AnnounceProviders(ctx, "b", []string{one}))
		got, err := dir.Providers(ctx)
		require.NoError(t, err)
		require.Subset(t, got, []string{one, two})
		require.IsIncreasing(t, got)
	})
	t.Run("claims", func(t *testing.T) {
		ctx, name := bounded(t), NewToken(t)
		claim := func(kind journal.ClaimKind, digest string) journal.Claim {
			return journal.Claim{Kind: kind, Name: name, Digest: digest}
		}
		claims := func() (own []journal.Claim, seqs []uint64) {
			all, err := dir.Claims(ctx)
			require.NoError(t, err)
			for _, c := range all {
				if c.Name == name {
					seqs, c.Seq = append(seqs, c.Seq), 0
					own = append(own, c)
				}
			}
			return own, seqs
		}
		says := func(instance, digest string) {
			require.NoError(t, dir.AnnounceProviders(ctx, instance, []string{name}, claim(journal.ClaimAgent, digest), claim(journal.ClaimProvider, digest)))
		}
		says("host-1:77/x", "one")
		says("host-2", "two")
		want := []journal.Claim{
			{Kind: journal.ClaimAgent, Name: name, Digest: "one", Instance: "host-1:77/x"},
			{Kind: journal.ClaimProvider, Name: name, Digest: "one", Instance: "host-1:77/x"},
			{Kind: journal.ClaimAgent, Name: name, Digest: "two", Instance: "host-2"},
			{Kind: journal.ClaimProvider, Name: name, Digest: "two", Instance: "host-2"},
		}
		got, before := claims()
		require.Equal(t, want, got)
		says("host-2", "two")
		got, after := claims()
		require.Equal(t, want, got)
		require.Equal(t, before[:2], after[:2])
		require.Greater(t, after[2], before[2], "said again")
		require.NoError(t, dir.AnnounceProviders(ctx, "host-1:77/x", []string{name}))
		got, _ = claims()
		require.Equal(t, want[2:], got)
		names, err := dir.Providers(ctx)
		require.NoError(t, err)
		require.Contains(t, names, name)
	})
}

// Blobs tests [journal.Blobs].
func Blobs(t *testing.T, open func(t *testing.T) journal.Blobs) {
	blobs := open(t)
	ctx, pool := bounded(t), NewToken(t)
	for _, data := range [][]byte{[]byte("small"), {}, bytes.Repeat([]byte("0123456789"), 500_000)} {
		ref, err := blobs.PutBlob(ctx, pool, data)
		require.NoError(t, err)
		require.Equal(t, events.Ref{Bucket: "results_" + pool, Key: events.Hash(data), Size: len(data), SHA256: events.Hash(data)}, ref)
		again, err := blobs.PutBlob(ctx, pool, data)
		require.NoError(t, err)
		require.Equal(t, ref, again)
		got, err := blobs.Blob(ctx, ref)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got))
		wrong := ref
		wrong.SHA256 = events.Hash([]byte("other"))
		_, err = blobs.Blob(ctx, wrong)
		require.Error(t, err, "the digest is checked")
		wrong = ref
		wrong.Size++
		_, err = blobs.Blob(ctx, wrong)
		require.ErrorIs(t, err, journal.ErrNotFound, "so is the size")
	}
	unknown := events.Hash([]byte("never stored"))
	for _, bucket := range []string{"results_" + pool, "results_" + NewToken(t), "agents", ""} {
		_, err := blobs.Blob(ctx, events.Ref{Bucket: bucket, Key: unknown, SHA256: unknown, Size: 3})
		require.ErrorIs(t, err, journal.ErrNotFound)
	}
	_, err := blobs.PutBlob(ctx, "*", nil)
	require.Error(t, err)
}

// LogRunless is a journal that can append and shows strays.
type LogRunless interface {
	journal.Log
	ports.Runless
}

// Runless tests [ports.Runless]. inject stores a record with any subject in a
// shard.
func Runless(t *testing.T, open func(t *testing.T) (log LogRunless, inject func(shard int, subject, body string))) {
	log, inject := open(t)
	ctx, run := bounded(t), NewRun(t, log)
	AppendAll(t, log, run, "of a run")
	collect := func(shard int) []journal.Record {
		t.Helper()
		recs, err := Collect(log.Runless(ctx, shard))
		require.NoError(t, err)
		return recs
	}
	before := len(collect(run.Shard))
	root := "moore." + strconv.Itoa(run.Shard)
	subjects := []string{root + ".nonsense", root + ".default.acting.planning.default.nobody", root + ".a.b.c.d.e.f.g", root + ".nonsense",
		// As filters these would match the run.
		root + ".*.*.*.*." + run.ID, root + ".default.*.*.*.*", root + ".>", root + ".*"}
	if log.Shards() > 1 {
		other := RunIn(t, log, (run.Shard+1)%log.Shards())
		subjects = append(subjects, root+".default.idle.planning.default."+other.ID)
	}
	for i, subject := range subjects {
		inject(run.Shard, subject, strconv.Itoa(i))
	}
	recs := collect(run.Shard)[before:]
	require.Len(t, recs, len(subjects))
	for i, rec := range recs {
		require.Equal(t, subjects[i], rec.Subject)
		require.Equal(t, strconv.Itoa(i), string(rec.Body))
		require.True(t, i == 0 || rec.Seq > recs[i-1].Seq)
	}
	_, err := Collect(log.Runless(ctx, log.Shards()))
	require.Error(t, err)
}

// LogFeed is a journal that can append and be watched.
type LogFeed interface {
	journal.Log
	journal.Feed
}

// Feed tests [journal.Feed], but for what it loses.
func Feed(t *testing.T, open func(t *testing.T) LogFeed) {
	feed := open(t)
	t.Run("records", func(t *testing.T) {
		space := NewToken(t)
		got := make(chan journal.Record, 100)
		stop, err := feed.Watch(journal.Filter{Namespace: space}, func(r journal.Record) { got <- r }, func() {})
		require.NoError(t, err)
		defer stop()
		for shard := range feed.Shards() {
			run := RunIn(t, feed, shard)
			AppendAll(t, feed, run, "of another namespace")
			run.Namespace = space
			seq := AppendAll(t, feed, run, "watched")
			rec := <-got
			require.Equal(t, seq, rec.Seq)
			require.Equal(t, "watched", string(rec.Body))
			require.Equal(t, plain(run, "").Subject.String(), rec.Subject)
		}
		stop()
		stop()
	})
	t.Run("chunks", func(t *testing.T) {
		run := NewRun(t, feed)
		got := make(chan string, 100)
		stop, err := feed.WatchChunks(run, func(data []byte) { got <- string(data) })
		require.NoError(t, err)
		defer stop()
		require.NoError(t, feed.PublishChunk(NewRun(t, feed), []byte("of another run")))
		for _, text := range []string{"Hel", "lo"} {
			require.NoError(t, feed.PublishChunk(run, []byte(text)))
			require.Equal(t, text, <-got)
		}
	})
	t.Run("asks", func(t *testing.T) {
		run, got := NewRun(t, feed), make(chan events.Run, 100)
		require.NoError(t, feed.AskCatchUp(run), "nobody hears it")
		stop, err := feed.WatchAsks(func(r events.Run) { got <- r })
		require.NoError(t, err)
		defer stop()
		other := RunIn(t, feed, 0)
		other.Namespace = NewToken(t)
		for _, asked := range []events.Run{run, run, other} {
			require.NoError(t, feed.AskCatchUp(asked))
			for r := range got { // others may ask meanwhile
				if r == asked {
					break
				}
			}
		}
		stop()
		stop()
	})
}
