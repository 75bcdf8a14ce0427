package httpapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/buildinfo"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/recordline"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// With view=records every answer with events has the log's own records.
func TestRecordsOfTheLog(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.start("chat")
	r.inject(id, events.Planning, "no\njson")
	want := r.Records(id)
	require.Len(t, want, 2)
	is := func(at int, line string) {
		t.Helper()
		rec, err := recordline.Parse([]byte(line))
		require.NoError(t, err)
		require.Equal(t, journal.Record{Subject: want[at].Subject, Seq: want[at].Seq, Body: want[at].Body}, rec)
	}
	head := r.do("HEAD", "/v1/events", "")
	require.Equal(t, fmt.Sprintf("0:%d", want[1].Seq), head.header.Get(requests.PositionHeader))
	lines := strings.Split(strings.TrimSpace(r.do("GET", "/v1/runs/"+id+"/events?view=records", "").body), "\n")
	require.Len(t, lines, 2)
	one, all := r.stream("/v1/runs/"+id+"/events?view=records"), r.stream("/v1/events?view=records&from_seq=0:0")
	require.Equal(t, "0:0", all.res.Header.Get(requests.PositionHeader))
	for at := range want {
		is(at, lines[at])
		is(at, one.next().data)
		is(at, all.next().data)
	}
	is(1, r.stream("/v1/runs/"+id+"/events?view=records", "Last-Event-ID", "1").next().data)
	r.fails(http.StatusBadRequest, refusal.CodeBadParameter, r.do("GET", "/v1/events?view=state", ""))
}

func TestVersion(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	var facts buildinfo.Facts
	require.NoError(t, json.Unmarshal([]byte(r.do("GET", "/v1/version", "").body), &facts))
	require.Equal(t, buildinfo.Read(), facts)
}

func TestBlobs(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		ref, err := r.blobs().PutBlob(t.Context(), "default", []byte("<script>"))
		require.NoError(t, err)
		path := func(ref events.Ref) string {
			return fmt.Sprintf("/v1/blobs/%s/%s?size=%d", ref.Bucket, ref.SHA256, ref.Size)
		}
		a := r.do("GET", path(ref), "")
		require.Equal(t, "<script>", a.body)
		require.Equal(t, "application/octet-stream", a.header.Get("Content-Type"))
		require.Equal(t, "nosniff", a.header.Get("X-Content-Type-Options"))
		for _, change := range []func(*events.Ref){
			func(ref *events.Ref) { ref.Size++ }, func(ref *events.Ref) { ref.SHA256 = events.Hash([]byte("x")) },
			func(ref *events.Ref) { ref.SHA256 = "none" }, func(ref *events.Ref) { ref.Bucket = "snapshots" },
		} {
			other := ref
			change(&other)
			r.fails(http.StatusNotFound, refusal.CodeUnknownRef, r.do("GET", path(other), ""))
		}
		r.fails(http.StatusBadRequest, refusal.CodeBadParameter, r.do("GET", "/v1/blobs/results_default/x", ""))
	})
}
