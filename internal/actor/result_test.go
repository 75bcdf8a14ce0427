package actor_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/httptool"
)

// redacting gives an actor a secret to look for.
func redacting(secret string) func(*actor.Config) {
	return func(c *actor.Config) { c.Results.Secrets = []string{secret} }
}

func TestSecretsAreRedacted(t *testing.T) {
	leaks := func(text string, err error) tool.Tool {
		return pure("leaks", "default", func(context.Context, tool.Call) (string, error) { return text, err })
	}
	for _, c := range []struct {
		name string
		tool tool.Tool
		want string
	}{
		{"in a result", leaks("key=s3cr3t-key, twice s3cr3t-key", nil), "SUCCESS: key=[REDACTED], twice [REDACTED]"},
		{"the longer one first", leaks("s3cr3t-key-long", nil), "SUCCESS: [REDACTED]"},
		{"in a failure", leaks("", errors.New("401 for s3cr3t-key")), "ERROR: 401 for [REDACTED]"},
		{"what is no UTF-8", leaks("", errors.New("a\xff\xfeb")), "ERROR: a\uFFFDb"},
		{"by a pattern", leaks("token sk-12345 and sk-6", nil), "SUCCESS: token [REDACTED] and [REDACTED]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.spawn([]tool.Tool{c.tool}, func(cfg *actor.Config) {
					cfg.Results = actor.Results{Secrets: []string{"s3cr3t-key", "s3cr3t-key-long"}, Patterns: []string{`sk-[0-9]+`}}
				})
				run := r.plan("leaks")
				require.Equal(t, c.want, r.outcome(run).Observation)
				for _, rec := range r.Records(run) {
					require.NotContains(t, string(rec.Body), "s3cr3t")
				}
			})
		})
	}
}

func TestLargeResultGoesToTheObjectStore(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		whole := "BEGIN" + strings.Repeat("0123456789ö", 5<<20/12) + "s3cr3t-key" + "END"
		r.spawn([]tool.Tool{pure("big", "default", says(whole))}, redacting("s3cr3t-key"))
		run := r.plan("big")
		o := r.outcome(run)
		require.True(t, o.Success)
		require.NotNil(t, o.Ref)
		require.Less(t, len(o.Observation), 21<<10)
		require.True(t, utf8.ValidString(o.Observation))
		require.True(t, strings.HasPrefix(o.Observation, "SUCCESS: BEGIN0123"))
		require.True(t, strings.HasSuffix(o.Observation, "[REDACTED]END"))
		require.Contains(t, o.Observation, "are left out here; the whole result is kept as "+o.Ref.Key)
		data, err := r.Journal.Blob(t.Context(), *o.Ref)
		require.NoError(t, err)
		require.Equal(t, strings.ReplaceAll(whole, "s3cr3t-key", "[REDACTED]"), string(data), "the kept one is redacted too")
		require.Equal(t, len(data), o.Ref.Size)
		require.Equal(t, events.Hash(data), o.Ref.SHA256)
		require.Equal(t, "results_default", o.Ref.Bucket)
		require.Equal(t, o.Ref, r.Memory(run).ToolCalls["c1"].Ref)
	})
}

// brokenBlobs is an object store that is away.
type brokenBlobs struct{}

func (brokenBlobs) PutBlob(context.Context, string, []byte) (events.Ref, error) {
	return events.Ref{}, errors.New("away")
}

func (brokenBlobs) Blob(context.Context, events.Ref) ([]byte, error) { return nil, errors.New("away") }

func TestLargeResultWithoutObjectStore(t *testing.T) {
	for name, blobs := range map[string]journal.Blobs{"away": brokenBlobs{}, "none": nil} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				f := once("big", says(strings.Repeat("x", 5<<20)))
				r.spawn([]tool.Tool{f}, func(c *actor.Config) { c.Blobs = blobs })
				run := r.plan("big")
				o := r.outcome(run)
				require.True(t, o.Success)
				require.Nil(t, o.Ref)
				require.Contains(t, o.Observation, "it was not kept")
				require.Less(t, len(o.Observation), 21<<10)
				require.Equal(t, 1, f.count("c1"))
			})
		})
	}
}

// What grows when it is written as JSON is kept whole as long as it fits into an event;
// else it goes to the object store, as what is too large does.
func TestLargestResultsFit(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it stores results of the largest size
	}
	const most = 900 << 10
	for name, c := range map[string]struct {
		unit         string
		bytes, limit int
		whole        bool
	}{
		"control characters": {"\x00\x01", 240 << 10, 0, false},
		"quotes":             {`"\`, 250 << 10, 0, true},
		"line separators":    {"\u2028", 240 << 10, 0, true},
		"markup":             {"<>&", 240 << 10, 0, true},
		"most text":          {"x", most, most, false},
		"most separators":    {"\u2028", most, most, false},
		"most controls":      {"\x02", most, most, false},
		"most quotes":        {`"`, most, most, false},
		"most runes":         {"ö", most, most, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				text := strings.Repeat(c.unit, c.bytes/len(c.unit))
				r.spawn([]tool.Tool{once("odd", says(text))}, func(cfg *actor.Config) { cfg.Results.MaxBytes = c.limit })
				run := r.plan("odd")
				o := r.outcome(run)
				require.True(t, o.Success)
				require.Equal(t, []string{"Start", "LlmToolCall", "ToolCallStarted", "ToolSuccess"}, r.Types(run))
				require.Equal(t, c.whole, o.Ref == nil)
				if c.whole {
					require.Equal(t, "SUCCESS: "+text, o.Observation)
				}
			})
		})
	}
}

// Over real HTTP: what the tool is told about the call, what becomes of its
// answer, and that an idempotent call that a dead actor had begun is sent again
// under the same key.
func TestHTTPTool(t *testing.T) {
	var mu sync.Mutex
	var keys []string
	hold, began := make(chan struct{}), make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		mu.Lock()
		keys = append(keys, req.Header.Get("Idempotency-Key"))
		first := len(keys) == 1
		mu.Unlock()
		if first {
			began <- struct{}{}
			select {
			case <-hold:
			case <-req.Context().Done():
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]string{
			"x": req.Header.Get("X-Moorebus-Run"), "call": req.Header.Get("X-Moorebus-Call"),
			"key": req.Header.Get("Authorization"), "body": string(body),
		})
	}))
	defer server.Close()
	defer close(hold)
	get := func() tool.Tool {
		made, err := httptool.New(tool.Definition{Name: "get", Effect: tool.Idempotent}, httptool.Options{
			URL: server.URL, Headers: map[string]string{"Authorization": "Bearer s3cr3t-key"},
		})
		require.NoError(t, err)
		t.Cleanup(func() { _ = made.(io.Closer).Close() })
		return made
	}
	// The journal's time is the real one here, so its ack wait is short.
	r := &rig{Bench: workertest.New(t, simtest.Options{AckWait: 300 * time.Millisecond}, nil)}
	victim := r.spawn([]tool.Tool{get()})
	run := r.plan("get")
	<-began
	victim.Kill()
	r.spawn([]tool.Tool{get()}, redacting("Bearer s3cr3t-key"))
	o := r.outcome(run)
	require.True(t, o.Success)
	var answer map[string]string
	require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(o.Observation, "SUCCESS: ")), &answer))
	require.Equal(t, run.ID, answer["x"])
	require.Equal(t, "c1", answer["call"])
	require.Equal(t, "{}", answer["body"])
	require.Equal(t, "[REDACTED]", answer["key"], "a credential that comes back stays here")
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []string{run.ID + "/c1", run.ID + "/c1"}, keys)
}
