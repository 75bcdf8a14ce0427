package segment_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/moorebus/moorebus/internal/blobs"
	"github.com/moorebus/moorebus/internal/blobs/blobstest"
	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/internal/history/segment"
	"github.com/moorebus/moorebus/internal/recordline"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// memory is a log with ended runs.
type memory struct {
	runs    map[events.Run][]journal.Record
	objects map[string][]byte
	rows    []history.Run
}

func (m *memory) Shards() int { return 2 }

func (m *memory) Read(_ context.Context, run events.Run, _ uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		for _, rec := range m.runs[run] {
			if !yield(rec, nil) {
				return
			}
		}
	}
}

func (m *memory) Blob(_ context.Context, ref events.Ref) ([]byte, error) {
	if data, ok := m.objects[ref.SHA256]; ok {
		return data, nil
	}
	return nil, journal.ErrNotFound
}

// add adds a run with these bodies.
func (m *memory) add(id int, bodies ...[]byte) {
	run := events.NewRun("default", fmt.Sprintf("0190d8e0-0000-7000-8000-%012x", id), m.Shards())
	for i, body := range bodies {
		subject := events.Subject{Run: run, From: events.Control, To: events.Nobody, Pool: events.DefaultPool}
		m.runs[run] = append(m.runs[run], journal.Record{Subject: subject.String(), Seq: uint64(id*1000 + i + 1), Body: body, Stored: now.Add(time.Duration(i))})
	}
	m.rows = append(m.rows, history.Run{Namespace: run.Namespace, ID: run.ID, Head: events.Hash(bodies[len(bodies)-1]), N: uint64(len(bodies)), Task: "task", Ended: now})
}

// result is an event with a large result, which the log has.
func (m *memory) result(t testing.TB, data string) []byte {
	ref := events.Ref{Bucket: "results_default", Key: "k-" + data, Size: len(data), SHA256: events.Hash([]byte(data))}
	m.objects[ref.SHA256] = []byte(data)
	body, err := new(events.Codec).Encode(&events.Event{
		ID: "0190d8e0-0000-7000-8000-0000000000aa", Source: "moorebus/test/1", Run: "0190d8e0-0000-7000-8000-0000000000ab", Time: now,
		N: 1, From: events.Acting, To: events.Observing, Data: &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: "c", Success: true, Ref: &ref}},
	})
	require.NoError(t, err)
	require.Len(t, recordline.Refs(new(events.Codec), body), 1)
	return body
}

func newMemory() *memory {
	return &memory{runs: map[events.Run][]journal.Record{}, objects: map[string][]byte{}}
}

func three(t testing.TB) *memory {
	m := newMemory()
	m.add(1, []byte(`{"a":1}`), []byte(`not json`), m.result(t, "large one"))
	m.add(2, []byte(strings.Repeat("x", 100_000)))
	m.add(3, m.result(t, "large two"), []byte(`{"end":true}`))
	return m
}

func write(t testing.TB, to blobs.Store, m *memory) *segment.Manifest {
	t.Helper()
	made, err := segment.Write(t.Context(), to, m, now, m.rows)
	require.NoError(t, err)
	return made
}

// equal checks that a store has the runs, byte for byte.
func equal(t require.TestingT, ctx context.Context, from blobs.Store, name string, m *memory) {
	made, err := segment.Open(ctx, from, name)
	require.NoError(t, err)
	require.Len(t, made.Runs, len(m.rows))
	for i := range made.Runs {
		e := &made.Runs[i]
		require.Equal(t, m.rows[i], e.Row)
		records, err := made.Read(ctx, from, e)
		require.NoError(t, err)
		want := m.runs[e.Run(m.Shards())]
		require.Len(t, records, len(want))
		for j, rec := range records {
			require.Equal(t, want[j].Subject, rec.Subject)
			require.Equal(t, want[j].Seq, rec.Seq)
			require.Equal(t, string(want[j].Body), string(rec.Body))
			require.True(t, want[j].Stored.Equal(rec.Stored))
			for _, ref := range recordline.Refs(new(events.Codec), rec.Body) {
				data, err := made.Object(ctx, from, e, ref)
				require.NoError(t, err)
				require.Equal(t, m.objects[ref.SHA256], data)
			}
		}
	}
}

func damage(t testing.TB, from blobs.Store) (found []string) {
	t.Helper()
	for d, err := range segment.Damage(t.Context(), from) {
		require.NoError(t, err)
		require.ErrorIs(t, d, segment.ErrDamaged)
		require.Contains(t, d.Error(), "segment "+d.Segment)
		found = append(found, d.Segment+"/"+d.Run)
	}
	return found
}

func TestSegment(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) string{
		"folder": func(t *testing.T) string { return "file:" + t.TempDir() },
		"bucket": func(t *testing.T) string { return blobstest.Server(t, "archive", nil) },
	} {
		t.Run(name, func(t *testing.T) {
			store, err := blobs.Open(open(t))
			require.NoError(t, err)
			one, other := three(t), newMemory()
			other.add(9, []byte(`{}`))
			first, second := write(t, store, one), write(t, store, other)
			equal(t, t.Context(), store, first.Name, one)
			equal(t, t.Context(), store, second.Name, other)
			var names []string
			for m, err := range segment.All(t.Context(), store) {
				require.NoError(t, err)
				names = append(names, m.Name)
			}
			require.ElementsMatch(t, []string{first.Name, second.Name}, names)
			require.Empty(t, damage(t, store))
			_, err = first.Object(t.Context(), store, &first.Runs[1], first.Runs[0].Objects[0])
			require.ErrorIs(t, err, journal.ErrNotFound)
			require.NoError(t, first.Delete(t.Context(), store))
			_, err = segment.Open(t.Context(), store, first.Name)
			require.ErrorIs(t, err, blobs.ErrNotExist)
			equal(t, t.Context(), store, second.Name, other)
			n := 0
			for _, err := range store.List(t.Context(), "") {
				require.NoError(t, err)
				n++
			}
			require.Equal(t, 2, n, "nothing stays of a deleted segment")
		})
	}
}

// Whatever bytes runs have come back.
func TestBytes(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		m := newMemory()
		for id := range rapid.IntRange(1, 5).Draw(rt, "runs") {
			m.add(id, rapid.SliceOfN(rapid.SliceOf(rapid.Byte()), 1, 6).Draw(rt, "bodies")...)
		}
		store := blobs.NewFolder(dir)
		made, err := segment.Write(t.Context(), store, m, now, m.rows)
		require.NoError(rt, err)
		equal(rt, t.Context(), store, made.Name, m)
	})
}

// A segment's events are an export, which zstd unpacks.
func TestExport(t *testing.T) {
	zstd, err := exec.LookPath("zstd")
	if err != nil {
		t.Skip("zstd is not installed") // reason: it is another program's reading of the format that is tested
	}
	dir, m := t.TempDir(), newMemory()
	m.add(1, []byte(`{"a":1}`), []byte(`{"b":"é"}`))
	m.add(2, []byte(`[]`))
	made := write(t, blobs.NewFolder(dir), m)
	to := filepath.Join(t.TempDir(), "runs.jsonl")
	out, err := exec.Command(zstd, "-q", "-d", filepath.Join(dir, "segments", made.Name+".jsonl.zst"), "-o", to).CombinedOutput()
	require.NoError(t, err, string(out))
	file, err := filelog.Open(to)
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	require.Len(t, file.Runs(), 2)
	for run, want := range m.runs {
		var got []journal.Record
		for rec, err := range file.Read(t.Context(), run, 0) {
			require.NoError(t, err)
			got = append(got, rec)
		}
		require.Len(t, got, len(want))
		for i := range got {
			require.Equal(t, string(want[i].Body), string(got[i].Body))
		}
	}
}

// Every changed byte, every shorter length and every object that is gone is found, with the segment and run.
func TestDamage(t *testing.T) {
	dir, m := t.TempDir(), newMemory()
	m.add(1, []byte(`{"a":1}`), m.result(t, "large"))
	m.add(2, []byte(`{"b":2}`))
	store := blobs.NewFolder(dir)
	made := write(t, store, m)
	require.Empty(t, damage(t, store))
	second := made.Runs[1].Offset
	put := func(key string, data []byte) { require.NoError(t, store.Put(t.Context(), key, bytes.NewReader(data))) }
	for info, err := range store.List(t.Context(), "") {
		require.NoError(t, err)
		data, err := blobs.ReadAll(t.Context(), store, info.Key)
		require.NoError(t, err)
		whose := func(at int) []string {
			switch {
			case strings.HasPrefix(info.Key, "manifests/"):
				return []string{made.Name + "/"}
			case strings.HasSuffix(info.Key, ".zst") && int64(at) >= second:
				return []string{made.Name + "/" + m.rows[1].ID}
			}
			return []string{made.Name + "/" + m.rows[0].ID}
		}
		for at := range data {
			changed := bytes.Clone(data)
			changed[at] ^= 0x41
			put(info.Key, changed)
			require.Equal(t, whose(at), damage(t, store), "%s, byte %d", info.Key, at)
			if strings.HasSuffix(info.Key, ".zst") {
				put(info.Key, data[:at])
				require.Subset(t, damage(t, store), whose(at))
			}
		}
		if !strings.HasPrefix(info.Key, "manifests/") {
			require.NoError(t, store.Delete(t.Context(), info.Key))
			require.Subset(t, damage(t, store), whose(0), info.Key)
		}
		put(info.Key, data)
	}
	require.Empty(t, damage(t, store))
}

// A manifest that somebody wrote with its hash, and that does not fit together, is damaged.
func TestForgedManifest(t *testing.T) {
	for name, change := range map[string]func(m map[string]any){
		"offset": func(m map[string]any) { m["runs"].([]any)[0].(map[string]any)["offset"] = 1 },
		"length": func(m map[string]any) { m["runs"].([]any)[0].(map[string]any)["length"] = -1 },
		"namespace": func(m map[string]any) {
			m["runs"].([]any)[0].(map[string]any)["row"].(map[string]any)["namespace"] = "a.b"
		},
		"bytes":  func(m map[string]any) { m["bytes"] = 1 << 40 },
		"name":   func(m map[string]any) { m["name"] = "other" },
		"shards": func(m map[string]any) { m["shards"] = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			store := blobs.NewFolder(t.TempDir())
			made := write(t, store, three(t))
			key := "manifests/" + made.Name + ".json"
			text, err := blobs.ReadAll(t.Context(), store, key)
			require.NoError(t, err)
			var m map[string]any
			require.NoError(t, json.Unmarshal(text, &m))
			change(m)
			m["sha256"] = strings.Repeat("0", 64)
			text, err = json.Marshal(m)
			require.NoError(t, err)
			text = bytes.Replace(text, []byte(strings.Repeat("0", 64)), []byte(events.Hash(text)), 1)
			require.NoError(t, store.Put(t.Context(), key, bytes.NewReader(text)))
			require.Len(t, damage(t, store), 1)
		})
	}
}

// A run whose last event is not its row's is not archived, nor one that is not there.
func TestRefused(t *testing.T) {
	store, m := blobs.NewFolder(t.TempDir()), three(t)
	for _, row := range []history.Run{{Namespace: "default", ID: m.rows[0].ID, Head: m.rows[1].Head}, {Namespace: "default", ID: m.rows[0].ID[:35] + "f", Head: ""}} {
		_, err := segment.Write(t.Context(), store, m, now, []history.Run{m.rows[1], row})
		require.ErrorContains(t, err, "archive run "+row.ID)
	}
	_, err := segment.Write(t.Context(), store, m, now, nil)
	require.Error(t, err)
	require.NoError(t, segment.Sweep(t.Context(), store, time.Now().Add(time.Hour)))
	for info, err := range store.List(t.Context(), "") {
		require.Fail(t, "something is there", "%v %v", info, err)
	}
}

// dying is a store whose process dies before its nth change.
type dying struct {
	blobs.Store
	left int
}

var errDied = errors.New("died")

func (d *dying) step() error {
	if d.left--; d.left < 0 {
		return errDied
	}
	return nil
}

func (d *dying) Put(ctx context.Context, key string, r io.Reader) error {
	data, err := io.ReadAll(r)
	if err = errors.Join(err, d.step()); err != nil {
		return err
	}
	return d.Store.Put(ctx, key, bytes.NewReader(data))
}

func (d *dying) PutIf(ctx context.Context, key string, data []byte, version string) error {
	if err := d.step(); err != nil {
		return err
	}
	return d.Store.PutIf(ctx, key, data, version)
}

func (d *dying) Delete(ctx context.Context, key string) error {
	if err := d.step(); err != nil {
		return err
	}
	return d.Store.Delete(ctx, key)
}

// A crash at any step of a write or a deletion leaves a segment that is there entirely, or none, and Sweep
// removes the rest.
func TestCrash(t *testing.T) {
	for _, deleting := range []bool{false, true} {
		complete := false
		for steps := 0; !complete; steps++ {
			store, m := blobs.NewFolder(t.TempDir()), three(t)
			name := ""
			if deleting {
				made := write(t, store, m)
				name = made.Name
				complete = made.Delete(t.Context(), &dying{store, steps}) == nil
			} else {
				_, err := segment.Write(t.Context(), &dying{store, steps}, m, now, m.rows)
				complete = err == nil
			}
			found := 0
			for made, err := range segment.All(t.Context(), store) {
				require.NoError(t, err)
				equal(t, t.Context(), store, made.Name, m)
				found, name = found+1, made.Name
			}
			require.Equal(t, found == 1, deleting && steps == 0 || !deleting && complete, "%d steps of deleting %t", steps, deleting)
			require.NoError(t, segment.Sweep(t.Context(), store, time.Now().Add(-time.Hour)))
			require.NoError(t, segment.Sweep(t.Context(), store, time.Now().Add(time.Hour)))
			left := 0
			for _, err := range store.List(t.Context(), "") {
				require.NoError(t, err)
				left++
			}
			require.Equal(t, found*4, left, name)
			require.Less(t, steps, 20)
		}
	}
}

// What was stored after the time may be of a segment that is being written.
func TestSweepLeavesWhatIsNew(t *testing.T) {
	store, m := blobs.NewFolder(t.TempDir()), three(t)
	_, err := segment.Write(t.Context(), &dying{store, 2}, m, now, m.rows)
	require.ErrorIs(t, err, errDied)
	require.NoError(t, segment.Sweep(t.Context(), store, time.Now().Add(-time.Hour)))
	left := 0
	for range store.List(t.Context(), "") {
		left++
	}
	require.Positive(t, left)
}
