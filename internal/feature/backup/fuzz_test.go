package backup

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzManifest: a manifest that somebody wrote, with the right checksum, is read or refused, and leads
// to no file outside the backup.
func FuzzManifest(f *testing.F) {
	const head = `{"format":"moorebus-backup","version":1,"sha256":"SUM","id":"a","log_made_at":"2026-01-01T00:00:00Z",`
	for _, text := range []string{
		head + `"shards":1,"increments":[]}`, head + `"shards":-1,"increments":[{}]}`, head + `"shards":1000000000000,"increments":[{}]}`,
		head + `"shards":1,"increments":[{"number":1,"cuts":[0],"log":[[]],"buckets":[{"name":"KV_purged"}]}]}`,
		head + `"shards":1,"increments":[{"number":1,"cuts":[],"log":[[],[{"path":"log/x","bytes":0,"sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}]],"buckets":null}]}`,
		head + `"shards":1,"increments":[{"number":1,"cuts":[0],"log":[[{"path":"../outside","bytes":0,"sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","lines":0}]],"buckets":[]}]}`,
		head + `"shards":1,"increments":[{"number":1,"cuts":[0],"log":[[]],"buckets":[{"name":"O","objects":true,"file":{"path":"buckets/there","bytes":0,"sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","lines":0}}]}]}`,
		`null`, `[]`, `{"sha256":"SUM"}`,
	} {
		f.Add([]byte(text))
	}
	dir := filepath.Join(f.TempDir(), "backup")
	for _, folder := range []string{logFolder, bucketFolder, objectFolder} {
		require.NoError(f, os.MkdirAll(filepath.Join(dir, folder), 0o700))
	}
	for _, file := range []string{"../outside", logFolder + "/x", bucketFolder + "/there"} {
		require.NoError(f, os.WriteFile(filepath.Join(dir, file), nil, 0o600))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		text = bytes.Replace(text, []byte("SUM"), []byte(noSum), 1)
		text = bytes.Replace(text, []byte(noSum), []byte(sum(text)), 1)
		require.NoError(t, os.WriteFile(filepath.Join(dir, manifestName), text, 0o600))
		a, err := Open(t.Context(), dir, time.Time{})
		if err != nil {
			return
		}
		for _, file := range a.manifest.files() {
			require.True(t, filepath.IsLocal(file.Path), file.Path)
			require.False(t, strings.Contains(file.Path, "outside"))
		}
		require.Len(t, a.manifest.last().Cuts, a.Shards())
		for shard := range a.Shards() {
			_, err := a.Last(t.Context(), shard)
			require.NoError(t, err)
		}
	})
}
