package entrystore_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// owner returns an agent's storage that nobody else uses.
func owner(t testing.TB) entrystore.Owner {
	t.Helper()
	return entrystore.Owner{Namespace: journaltest.NewToken(t), Agent: "a-b_c"}
}

func tagged(value string, tags ...string) events.Entry { return events.Entry{Tags: tags, Value: value} }

func TestStore(t *testing.T) {
	t.Run("simulated", func(t *testing.T) { testStore(t, entrystore.New(simtest.New(simtest.Options{}))) })
	t.Run("NATS", func(t *testing.T) { testStore(t, entrystore.New(controltest.NATS(t, natsbus.InitOptions{}))) })
}

func testStore(t *testing.T, storage *entrystore.Store) {
	t.Run("entries", func(t *testing.T) { storageEntries(t, storage) })
	t.Run("bounds", func(t *testing.T) { storageBounds(t, storage) })
	t.Run("refusals", func(t *testing.T) { storageRefusals(t, storage) })
	t.Run("deletions", func(t *testing.T) { storageDeletions(t, storage) })
	t.Run("concurrent", func(t *testing.T) { storageConcurrent(t, storage) })
	t.Run("oracle", func(t *testing.T) { storageOracle(t, storage) })
}

func storageEntries(t *testing.T, storage *entrystore.Store) {
	ctx, of := t.Context(), owner(t)
	_, err := storage.Get(ctx, of, []string{"a"})
	require.ErrorIs(t, err, journal.ErrNotFound)
	for _, q := range []entrystore.Query{{}, {Tags: []string{"a"}}, {Value: "x"}} {
		found, err := storage.Find(ctx, of, q)
		require.NoError(t, err)
		require.Empty(t, found.Entries)
		require.Zero(t, found.Total)
	}
	kept := []events.Entry{tagged("Second", "b"), tagged("one <&> \u2028", "a", "b"), tagged("three", "a", "c", "é.*>")}
	for _, e := range kept {
		require.NoError(t, storage.Save(ctx, of, entrystore.Actor, e))
		got, err := storage.Get(ctx, of, e.Tags)
		require.NoError(t, err)
		require.Equal(t, e, got)
	}
	for _, other := range []entrystore.Owner{{Namespace: of.Namespace, Agent: "other"}, {Namespace: of.Namespace + "x", Agent: of.Agent}} {
		require.NoError(t, storage.Save(ctx, other, entrystore.Actor, tagged("elsewhere", "a")))
	}
	for _, c := range []struct {
		q    entrystore.Query
		want []events.Entry
	}{
		{entrystore.Query{Tags: []string{"a"}}, kept[1:]},
		{entrystore.Query{Tags: []string{"b"}}, kept[:2]},
		{entrystore.Query{Tags: []string{"a", "b"}}, kept[1:2]},
		{entrystore.Query{Tags: []string{"é.*>"}}, kept[2:]},
		{entrystore.Query{Value: "SECOND"}, kept[:1]},
		{entrystore.Query{Tags: []string{"a"}, Value: "e"}, kept[1:]},
		{entrystore.Query{}, kept},
		{entrystore.Query{Tags: []string{"d"}}, []events.Entry{}},
	} {
		found, err := storage.Find(ctx, of, c.q)
		require.NoError(t, err)
		require.Equal(t, entrystore.Found{Entries: c.want, Total: len(c.want)}, found, "%+v", c.q)
	}
	// Whoever writes last wins, by whatever way it is read.
	for i, by := range []entrystore.Writer{entrystore.Observer, entrystore.Actor, entrystore.Observer} {
		value := strings.Repeat("again ", i+1)
		require.NoError(t, storage.Save(ctx, of, by, tagged(value, "a", "b")))
		got, err := storage.Get(ctx, of, []string{"a", "b"})
		require.NoError(t, err)
		require.Equal(t, value, got.Value)
		for _, q := range []entrystore.Query{{Tags: []string{"a", "b"}}, {Value: "again"}} {
			found, err := storage.Find(ctx, of, q)
			require.NoError(t, err)
			require.Equal(t, entrystore.Found{Entries: []events.Entry{tagged(value, "a", "b")}, Total: 1}, found)
		}
		found, err := storage.Find(ctx, of, entrystore.Query{Value: "one <&>"})
		require.NoError(t, err)
		require.Zero(t, found.Total, "what was replaced is not found")
	}
}

func storageBounds(t *testing.T, storage *entrystore.Store) {
	ctx, of := t.Context(), owner(t)
	for i := range 30 {
		e := tagged(strings.Repeat("x", 2000), "all", fmt.Sprint("n", i))
		require.NoError(t, storage.Save(ctx, of, entrystore.Actor, e))
	}
	big := tagged(strings.Repeat("y", 60_000), "all", "zbig")
	require.NoError(t, storage.Save(ctx, of, entrystore.Observer, big))
	for _, value := range []string{"", "x"} {
		total := 31
		if value != "" {
			total = 30
		}
		found, err := storage.Find(ctx, of, entrystore.Query{Tags: []string{"all"}, Value: value, Limit: 5})
		require.NoError(t, err)
		require.Len(t, found.Entries, 5)
		require.Equal(t, total, found.Total)
		found, err = storage.Find(ctx, of, entrystore.Query{Tags: []string{"all"}, Value: value, MaxBytes: 7000})
		require.NoError(t, err)
		require.Len(t, found.Entries, 3)
		require.Equal(t, total, found.Total)
		require.True(t, slices.IsSortedFunc(found.Entries, func(a, b events.Entry) int {
			return cmp.Or(cmp.Compare(len(a.Tags), len(b.Tags)), slices.Compare(a.Tags, b.Tags))
		}))
	}
	found, err := storage.Find(ctx, of, entrystore.Query{Tags: []string{"zbig"}, MaxBytes: 1})
	require.NoError(t, err)
	require.Equal(t, []events.Entry{big}, found.Entries, "at least one")
}

func storageRefusals(t *testing.T, storage *entrystore.Store) {
	ctx, of := t.Context(), owner(t)
	for _, bad := range []events.Entry{
		tagged("v"), tagged("v", ""), tagged("v", "a b"), tagged("v", "b", "a"), tagged("v", "a", "a"), tagged("v", "\xff"),
	} {
		require.Error(t, storage.Save(ctx, of, entrystore.Actor, bad), "%q", bad.Tags)
	}
	many := strings.Split(strings.Repeat("a", entrystore.MaxTags+1), "")
	for i := range many {
		many[i] = strings.Repeat("a", i+1)
	}
	for _, big := range []events.Entry{
		tagged("v", many...), tagged("v", strings.Repeat("t", entrystore.MaxTagBytes+1)), tagged(strings.Repeat("v", entrystore.MaxValueBytes), "a"),
		tagged(strings.Repeat("\x01", entrystore.MaxValueBytes/6+1), "a"),
	} {
		require.ErrorIs(t, storage.Save(ctx, of, entrystore.Actor, big), journal.ErrTooLarge)
	}
	require.Error(t, storage.Save(ctx, of, "somebody", tagged("v", "a")))
	for _, nobody := range []entrystore.Owner{{}, {Namespace: "A", Agent: "a"}, {Namespace: "a", Agent: "*"}, {Namespace: "a", Agent: "b_A_c"}} {
		require.Error(t, storage.Save(ctx, nobody, entrystore.Actor, tagged("v", "a")))
		_, err := storage.Get(ctx, nobody, []string{"a"})
		require.Error(t, err)
		_, err = storage.Find(ctx, nobody, entrystore.Query{})
		require.Error(t, err)
	}
}

func storageDeletions(t *testing.T, storage *entrystore.Store) {
	ctx, of := t.Context(), owner(t)
	tags := []string{"a", "b"}
	require.ErrorIs(t, storage.Delete(ctx, of, tags), journal.ErrNotFound)
	require.Error(t, storage.Delete(ctx, of, nil))
	for _, by := range []entrystore.Writer{entrystore.Actor, entrystore.Observer} {
		require.NoError(t, storage.Save(ctx, of, by, tagged("v", tags...)))
	}
	require.NoError(t, storage.Save(ctx, of, entrystore.Actor, tagged("w", "a")))
	all, err := storage.Owners(ctx)
	require.NoError(t, err)
	require.Contains(t, all, of)

	require.NoError(t, storage.Delete(ctx, of, tags))
	require.ErrorIs(t, storage.Delete(ctx, of, tags), journal.ErrNotFound)
	_, err = storage.Get(ctx, of, tags)
	require.ErrorIs(t, err, journal.ErrNotFound)
	for _, q := range []entrystore.Query{{}, {Tags: []string{"a"}}, {Value: "w"}, {Tags: []string{"b"}}} {
		found, err := storage.Find(ctx, of, q)
		require.NoError(t, err)
		want := entrystore.Found{Entries: []events.Entry{tagged("w", "a")}, Total: 1}
		if slices.Contains(q.Tags, "b") {
			want = entrystore.Found{Entries: []events.Entry{}}
		}
		require.Equal(t, want, found, "%+v", q)
	}

	// Whatever the order of a save and a deletion at once: an entry that is there is found by
	// its tags.
	for range 30 {
		var both sync.WaitGroup
		both.Go(func() { assert.NoError(t, storage.Save(ctx, of, entrystore.Actor, tagged("x", tags...))) })
		both.Go(func() {
			if err := storage.Delete(ctx, of, tags); !errors.Is(err, journal.ErrNotFound) {
				assert.NoError(t, err)
			}
		})
		both.Wait()
		_, err := storage.Get(ctx, of, tags)
		found, findErr := storage.Find(ctx, of, entrystore.Query{Tags: []string{"b"}})
		require.NoError(t, findErr)
		require.Len(t, found.Entries, map[bool]int{true: 1}[err == nil])
	}
}

// Writers of one storage do not lose each other's entries.
func storageConcurrent(t *testing.T, storage *entrystore.Store) {
	ctx, of := t.Context(), owner(t)
	var all sync.WaitGroup
	for w := range 4 {
		by := []entrystore.Writer{entrystore.Actor, entrystore.Observer}[w%2]
		all.Go(func() {
			for i := range 10 {
				for _, e := range []events.Entry{tagged("own", "own", fmt.Sprint("w", w, "_", i)), tagged("shared", "shared")} {
					if err := storage.Save(ctx, of, by, e); err != nil {
						t.Errorf("save: %v", err)
					}
				}
			}
		})
	}
	all.Wait()
	found, err := storage.Find(ctx, of, entrystore.Query{Tags: []string{"own"}, Limit: 100})
	require.NoError(t, err)
	require.Len(t, found.Entries, 40)
	found, err = storage.Find(ctx, of, entrystore.Query{Value: "shared"})
	require.NoError(t, err)
	require.Equal(t, []events.Entry{tagged("shared", "shared")}, found.Entries)
}

// storageOracle holds storage against a list of all that was saved, searched from
// its end.
func storageOracle(t *testing.T, storage *entrystore.Store) {
	of := owner(t)
	rapid.Check(t, func(r *rapid.T) {
		// All share one storage, since making one takes its time.
		ctx, own := t.Context(), journaltest.NewToken(t)
		var saved []events.Entry
		tags := rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d_e"}), 1, 3), func(all []string) []string {
			slices.Sort(all)
			return append(slices.Compact(all), own)
		})
		values := rapid.SampledFrom([]string{"Alpha", "beta", "ALPHABET", ""})
		for range rapid.IntRange(0, 8).Draw(r, "saves") {
			e := events.Entry{Tags: tags.Draw(r, "tags"), Value: values.Draw(r, "value")}
			by := rapid.SampledFrom([]entrystore.Writer{entrystore.Actor, entrystore.Observer}).Draw(r, "by")
			require.NoError(r, storage.Save(ctx, of, by, e))
			saved = append(saved, e)
		}
		for range 4 {
			q := entrystore.Query{
				Tags: []string{own}, Value: rapid.SampledFrom([]string{"", "alpha", "BET", "none"}).Draw(r, "substring"), Limit: 100, MaxBytes: 1 << 20,
			}
			if rapid.Bool().Draw(r, "by tags") {
				q.Tags = tags.Draw(r, "all of")
			}
			want := expected(saved, q)
			found, err := storage.Find(ctx, of, q)
			require.NoError(r, err)
			require.Equal(r, entrystore.Found{Entries: want, Total: len(want)}, found)
		}
	})
}

func expected(saved []events.Entry, q entrystore.Query) []events.Entry {
	want := []events.Entry{}
	for i, e := range saved {
		later := slices.ContainsFunc(saved[i+1:], func(o events.Entry) bool { return slices.Equal(o.Tags, e.Tags) })
		all := !slices.ContainsFunc(q.Tags, func(tag string) bool { return !slices.Contains(e.Tags, tag) })
		if !later && all && strings.Contains(strings.ToLower(e.Value), strings.ToLower(q.Value)) {
			want = append(want, e)
		}
	}
	slices.SortFunc(want, func(a, b events.Entry) int {
		if len(a.Tags) != len(b.Tags) {
			return len(a.Tags) - len(b.Tags)
		}
		return slices.Compare(a.Tags, b.Tags)
	})
	return want
}
