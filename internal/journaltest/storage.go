package journaltest

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Owner returns an agent's storage that nobody else uses.
func Owner(t testing.TB) journal.StorageOf {
	t.Helper()
	return journal.StorageOf{Namespace: NewToken(t), Agent: "a-b_c"}
}

func tagged(value string, tags ...string) events.Entry { return events.Entry{Tags: tags, Value: value} }

// Storage tests [journal.Storage].
func Storage(t *testing.T, open func(t *testing.T) journal.Storage) {
	storage := open(t)
	t.Run("entries", func(t *testing.T) { storageEntries(t, storage) })
	t.Run("bounds", func(t *testing.T) { storageBounds(t, storage) })
	t.Run("refusals", func(t *testing.T) { storageRefusals(t, storage) })
	t.Run("deletions", func(t *testing.T) { storageDeletions(t, storage) })
	t.Run("concurrent", func(t *testing.T) { storageConcurrent(t, storage) })
	t.Run("oracle", func(t *testing.T) { storageOracle(t, storage) })
}

func storageEntries(t *testing.T, storage journal.Storage) {
	ctx, of := bounded(t), Owner(t)
	_, err := storage.StoredEntry(ctx, of, []string{"a"})
	require.ErrorIs(t, err, journal.ErrNotFound)
	for _, q := range []journal.StorageQuery{{}, {Tags: []string{"a"}}, {Value: "x"}} {
		found, err := storage.FindEntries(ctx, of, q)
		require.NoError(t, err)
		require.Empty(t, found.Entries)
		require.Zero(t, found.Total)
	}
	kept := []events.Entry{tagged("Second", "b"), tagged("one <&> \u2028", "a", "b"), tagged("three", "a", "c", "é.*>")}
	for _, e := range kept {
		require.NoError(t, storage.SaveEntry(ctx, of, journal.WrittenByActor, e))
		got, err := storage.StoredEntry(ctx, of, e.Tags)
		require.NoError(t, err)
		require.Equal(t, e, got)
	}
	for _, other := range []journal.StorageOf{{Namespace: of.Namespace, Agent: "other"}, {Namespace: of.Namespace + "x", Agent: of.Agent}} {
		require.NoError(t, storage.SaveEntry(ctx, other, journal.WrittenByActor, tagged("elsewhere", "a")))
	}
	for _, c := range []struct {
		q    journal.StorageQuery
		want []events.Entry
	}{
		{journal.StorageQuery{Tags: []string{"a"}}, kept[1:]},
		{journal.StorageQuery{Tags: []string{"b"}}, kept[:2]},
		{journal.StorageQuery{Tags: []string{"a", "b"}}, kept[1:2]},
		{journal.StorageQuery{Tags: []string{"é.*>"}}, kept[2:]},
		{journal.StorageQuery{Value: "SECOND"}, kept[:1]},
		{journal.StorageQuery{Tags: []string{"a"}, Value: "e"}, kept[1:]},
		{journal.StorageQuery{}, kept},
		{journal.StorageQuery{Tags: []string{"d"}}, []events.Entry{}},
	} {
		found, err := storage.FindEntries(ctx, of, c.q)
		require.NoError(t, err)
		require.Equal(t, journal.Found{Entries: c.want, Total: len(c.want)}, found, "%+v", c.q)
	}
	// Whoever writes last wins, by whatever way it is read.
	for i, by := range []journal.Writer{journal.WrittenByObserver, journal.WrittenByActor, journal.WrittenByObserver} {
		value := strings.Repeat("again ", i+1)
		require.NoError(t, storage.SaveEntry(ctx, of, by, tagged(value, "a", "b")))
		got, err := storage.StoredEntry(ctx, of, []string{"a", "b"})
		require.NoError(t, err)
		require.Equal(t, value, got.Value)
		for _, q := range []journal.StorageQuery{{Tags: []string{"a", "b"}}, {Value: "again"}} {
			found, err := storage.FindEntries(ctx, of, q)
			require.NoError(t, err)
			require.Equal(t, journal.Found{Entries: []events.Entry{tagged(value, "a", "b")}, Total: 1}, found)
		}
		found, err := storage.FindEntries(ctx, of, journal.StorageQuery{Value: "one <&>"})
		require.NoError(t, err)
		require.Zero(t, found.Total, "what was replaced is not found")
	}
}

func storageBounds(t *testing.T, storage journal.Storage) {
	ctx, of := bounded(t), Owner(t)
	for i := range 30 {
		e := tagged(strings.Repeat("x", 2000), "all", "n"+numbered(30)[i][5:])
		require.NoError(t, storage.SaveEntry(ctx, of, journal.WrittenByActor, e))
	}
	big := tagged(strings.Repeat("y", 60_000), "all", "zbig")
	require.NoError(t, storage.SaveEntry(ctx, of, journal.WrittenByObserver, big))
	for _, value := range []string{"", "x"} {
		total := 31
		if value != "" {
			total = 30
		}
		found, err := storage.FindEntries(ctx, of, journal.StorageQuery{Tags: []string{"all"}, Value: value, Limit: 5})
		require.NoError(t, err)
		require.Len(t, found.Entries, 5)
		require.Equal(t, total, found.Total)
		found, err = storage.FindEntries(ctx, of, journal.StorageQuery{Tags: []string{"all"}, Value: value, MaxBytes: 7000})
		require.NoError(t, err)
		require.Len(t, found.Entries, 3)
		require.Equal(t, total, found.Total)
		require.True(t, slices.IsSortedFunc(found.Entries, func(a, b events.Entry) int { return journalcheck.CompareTags(a.Tags, b.Tags) }))
	}
	found, err := storage.FindEntries(ctx, of, journal.StorageQuery{Tags: []string{"zbig"}, MaxBytes: 1})
	require.NoError(t, err)
	require.Equal(t, []events.Entry{big}, found.Entries, "at least one")
}

func storageRefusals(t *testing.T, storage journal.Storage) {
	ctx, of := bounded(t), Owner(t)
	for _, bad := range []events.Entry{
		tagged("v"), tagged("v", ""), tagged("v", "a b"), tagged("v", "b", "a"), tagged("v", "a", "a"), tagged("v", "\xff"),
	} {
		require.Error(t, storage.SaveEntry(ctx, of, journal.WrittenByActor, bad), "%q", bad.Tags)
	}
	many := strings.Split(strings.Repeat("a", journalcheck.MaxTags+1), "")
	for i := range many {
		many[i] = strings.Repeat("a", i+1)
	}
	for _, big := range []events.Entry{
		tagged("v", many...), tagged("v", strings.Repeat("t", journalcheck.MaxTagBytes+1)), tagged(strings.Repeat("v", journalcheck.MaxValueBytes), "a"),
		tagged(strings.Repeat("\x01", journalcheck.MaxValueBytes/6+1), "a"),
	} {
		require.ErrorIs(t, storage.SaveEntry(ctx, of, journal.WrittenByActor, big), journal.ErrTooLarge)
	}
	require.Error(t, storage.SaveEntry(ctx, of, "somebody", tagged("v", "a")))
	for _, nobody := range []journal.StorageOf{{}, {Namespace: "A", Agent: "a"}, {Namespace: "a", Agent: "*"}, {Namespace: "a", Agent: "b_A_c"}} {
		require.Error(t, storage.SaveEntry(ctx, nobody, journal.WrittenByActor, tagged("v", "a")))
		_, err := storage.StoredEntry(ctx, nobody, []string{"a"})
		require.Error(t, err)
		_, err = storage.FindEntries(ctx, nobody, journal.StorageQuery{})
		require.Error(t, err)
	}
}

func storageDeletions(t *testing.T, storage journal.Storage) {
	ctx, of := bounded(t), Owner(t)
	tags := []string{"a", "b"}
	require.ErrorIs(t, storage.DeleteEntry(ctx, of, tags), journal.ErrNotFound)
	require.Error(t, storage.DeleteEntry(ctx, of, nil))
	for _, by := range []journal.Writer{journal.WrittenByActor, journal.WrittenByObserver} {
		require.NoError(t, storage.SaveEntry(ctx, of, by, tagged("v", tags...)))
	}
	require.NoError(t, storage.SaveEntry(ctx, of, journal.WrittenByActor, tagged("w", "a")))
	all, err := storage.StorageOf(ctx)
	require.NoError(t, err)
	require.Contains(t, all, of)

	require.NoError(t, storage.DeleteEntry(ctx, of, tags))
	require.ErrorIs(t, storage.DeleteEntry(ctx, of, tags), journal.ErrNotFound)
	_, err = storage.StoredEntry(ctx, of, tags)
	require.ErrorIs(t, err, journal.ErrNotFound)
	for _, q := range []journal.StorageQuery{{}, {Tags: []string{"a"}}, {Value: "w"}, {Tags: []string{"b"}}} {
		found, err := storage.FindEntries(ctx, of, q)
		require.NoError(t, err)
		want := journal.Found{Entries: []events.Entry{tagged("w", "a")}, Total: 1}
		if slices.Contains(q.Tags, "b") {
			want = journal.Found{Entries: []events.Entry{}}
		}
		require.Equal(t, want, found, "%+v", q)
	}

	// Whatever the order of a save and a deletion at once: an entry that is there is found by
	// its tags.
	for range 30 {
		var both sync.WaitGroup
		both.Go(func() { assert.NoError(t, storage.SaveEntry(ctx, of, journal.WrittenByActor, tagged("x", tags...))) })
		both.Go(func() {
			if err := storage.DeleteEntry(ctx, of, tags); !errors.Is(err, journal.ErrNotFound) {
				assert.NoError(t, err)
			}
		})
		both.Wait()
		_, err := storage.StoredEntry(ctx, of, tags)
		found, findErr := storage.FindEntries(ctx, of, journal.StorageQuery{Tags: []string{"b"}})
		require.NoError(t, findErr)
		require.Len(t, found.Entries, map[bool]int{true: 1}[err == nil])
	}
}

// Writers of one storage do not lose each other's entries.
func storageConcurrent(t *testing.T, storage journal.Storage) {
	ctx, of := bounded(t), Owner(t)
	var all sync.WaitGroup
	for w := range 4 {
		by := []journal.Writer{journal.WrittenByActor, journal.WrittenByObserver}[w%2]
		all.Go(func() {
			for i := range 10 {
				for _, e := range []events.Entry{tagged("own", "own", "w"+numbered(4)[w][5:6]+"_"+numbered(10)[i][5:6]), tagged("shared", "shared")} {
					if err := storage.SaveEntry(ctx, of, by, e); err != nil {
						t.Errorf("save: %v", err)
					}
				}
			}
		})
	}
	all.Wait()
	found, err := storage.FindEntries(ctx, of, journal.StorageQuery{Tags: []string{"own"}, Limit: 100})
	require.NoError(t, err)
	require.Len(t, found.Entries, 40)
	found, err = storage.FindEntries(ctx, of, journal.StorageQuery{Value: "shared"})
	require.NoError(t, err)
	require.Equal(t, []events.Entry{tagged("shared", "shared")}, found.Entries)
}

// storageOracle holds storage against a list of all that was saved, searched from
// its end.
func storageOracle(t *testing.T, storage journal.Storage) {
	of := Owner(t)
	rapid.Check(t, func(r *rapid.T) {
		// All share one storage, since making one takes its time.
		ctx, own := bounded(t), NewToken(t)
		var saved []events.Entry
		tags := rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d_e"}), 1, 3), func(all []string) []string {
			slices.Sort(all)
			return append(slices.Compact(all), own)
		})
		values := rapid.SampledFrom([]string{"Alpha", "beta", "ALPHABET", ""})
		for range rapid.IntRange(0, 8).Draw(r, "saves") {
			e := events.Entry{Tags: tags.Draw(r, "tags"), Value: values.Draw(r, "value")}
			by := rapid.SampledFrom([]journal.Writer{journal.WrittenByActor, journal.WrittenByObserver}).Draw(r, "by")
			require.NoError(r, storage.SaveEntry(ctx, of, by, e))
			saved = append(saved, e)
		}
		for range 4 {
			q := journal.StorageQuery{
				Tags: []string{own}, Value: rapid.SampledFrom([]string{"", "alpha", "BET", "none"}).Draw(r, "substring"), Limit: 100, MaxBytes: 1 << 20,
			}
			if rapid.Bool().Draw(r, "by tags") {
				q.Tags = tags.Draw(r, "all of")
			}
			want := expected(saved, q)
			found, err := storage.FindEntries(ctx, of, q)
			require.NoError(r, err)
			require.Equal(r, journal.Found{Entries: want, Total: len(want)}, found)
		}
	})
}

func expected(saved []events.Entry, q journal.StorageQuery) []events.Entry {
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
