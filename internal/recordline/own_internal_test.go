package recordline

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codec"
	"github.com/moorebus/moorebus/pkg/journal"
)

// FuzzOwn: whatever the quick reader accepts, package json reads as the same record.
func FuzzOwn(f *testing.F) {
	rec := journal.Record{Subject: "moore.0.default.idle.planning.default.x", Seq: 7, Body: []byte(`{"a":"ü","body":{}}`), Stored: time.Unix(1, 5).UTC()}
	own, err := Append(nil, rec)
	require.NoError(f, err)
	stored, err := AppendStored(nil, rec)
	require.NoError(f, err)
	for _, line := range [][]byte{own, stored} {
		_, ok := parseOwn(line)
		require.True(f, ok)
	}
	for _, line := range []string{
		string(own), string(stored), `{"subject":"a","seq":1,"body":{},"seq":2}`, `{"subject":"a","seq":01,"body":{}}`, `{"subject":"a\u0041","seq":1,"body":{}}`,
		`{"subject":"a","seq":1,"body": 1 }`, `{"subject":"a","seq":1,"stored":"2026-01-01T00:00:00+01:00","body":1}`, `{"subject":"a","seq":1,"stored":null,"body":1}`,
		`{"subject":"a","seq":1,"body":null}`, `{"subject":"a","seq":1,"body":1}}`, `{"subject":"a","seq":1,"body_base64":"AA=="}`, `{"subject":"","seq":1,"body":1}`,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, ok := parseOwn(text)
		if !ok {
			return
		}
		var l line
		require.NoError(t, codec.Strict(text, &l))
		require.Equal(t, l.Subject, got.Subject)
		require.Equal(t, l.Seq, got.Seq)
		require.Equal(t, string(l.Body), string(got.Body))
		if l.Stored != nil {
			require.True(t, l.Stored.Equal(got.Stored))
		} else {
			require.True(t, got.Stored.IsZero())
		}
	})
}
