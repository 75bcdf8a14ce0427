package actor_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/tool"
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

// What grows when it is written as JSON still fits into an event.
func TestResultsThatGrowAsJSON(t *testing.T) {
	for name, text := range map[string]string{
		"control characters": strings.Repeat("\x00\x01", 120<<10),
		"quotes":             strings.Repeat(`"\`, 125<<10),
		"line separators":    strings.Repeat("\u2028", 80<<10),
		"markup":             strings.Repeat("<>&", 80<<10),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				f := once("odd", says(text))
				r.spawn([]tool.Tool{f})
				run := r.plan("odd")
				o := r.outcome(run)
				require.True(t, o.Success)
				require.Equal(t, []string{"Start", "LlmToolCall", "ToolCallStarted", "ToolSuccess"}, r.Types(run))
				require.Equal(t, name == "control characters", o.Ref != nil)
				if o.Ref == nil {
					require.Equal(t, "SUCCESS: "+text, o.Observation)
				}
			})
		})
	}
}

// A result of the largest size allowed is kept whole whatever it is made of, or
// shortened, but never too large for the log.
func TestLargestResultsFit(t *testing.T) {
	for name, unit := range map[string]string{"text": "x", "separators": "\u2028", "controls": "\x02", "quotes": `"`, "runes": "ö"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				const limit = 900 << 10
				f := once("odd", says(strings.Repeat(unit, limit/len(unit))))
				r.spawn([]tool.Tool{f}, func(c *actor.Config) { c.Results.MaxBytes = limit })
				run := r.plan("odd")
				require.True(t, r.outcome(run).Success)
				require.Equal(t, 4, len(r.Types(run)))
			})
		})
	}
}

func TestInvalidUTF8(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.spawn([]tool.Tool{pure("odd", "default", says("a\xff\xfeb"))})
		run := r.plan("odd")
		require.Equal(t, "SUCCESS: a\uFFFDb", r.outcome(run).Observation)
	})
}
