package actor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/builtin"
)

func memoryTools(t *testing.T) []tool.Tool {
	t.Helper()
	var all []tool.Tool
	for _, name := range builtin.MemoryNames() {
		made, err := builtin.New(name, builtin.Options{})
		require.NoError(t, err)
		all = append(all, made)
	}
	return all
}

// remembering runs an actor with the tools of memory and storage, and a run that
// it has the calls of.
func remembering(t *testing.T, r *rig, change ...func(*actor.Config)) (events.Run, *simtest.Process) {
	t.Helper()
	p := r.spawn(memoryTools(t), func(c *actor.Config) {
		for _, ch := range change {
			ch(c)
		}
	})
	start := reducertest.StartOf("remember it", events.ModeTask)
	start.Tools = r.specs
	return r.Start(start), p
}

var made int

// calls has the run call a tool, and returns what came of it.
func (r *rig) calls(run events.Run, name, arguments string) *events.ToolOutcome {
	r.T.Helper()
	made++
	if r.Memory(run).State == events.Observing {
		r.Append(run, events.Observing, &events.Continue{})
	}
	r.Append(run, events.Planning, &events.LLMToolCall{ToolCallReply: events.ToolCallReply{
		Confidence: 1, Calls: []events.Call{{ID: fmt.Sprint("m", made), Name: name, Arguments: arguments}},
	}})
	n := r.Memory(run).N
	r.Await(run, func(mem *reducer.Memory) bool { return mem.N >= n && mem.State == events.Observing })
	return r.outcome(run)
}

// What working memory has under the same tags, and storage has not, is not replaced
// by a load; the model is told.
func TestLoadLeavesWhatWasNotSaved(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		run, _ := remembering(t, r)
		r.calls(run, "storage_save", `{"tags":"a","value":"old"}`)
		r.calls(run, "storage_save", `{"tags":"a,b","value":"other"}`)
		r.calls(run, "working_memory_add", `{"tags":"a","value":"new"}`)
		o := r.calls(run, "storage_load", `{"tags":"a"}`)
		require.Equal(t, codes.SuccessPrefix+"Found 2; in working memory now:\n[a] old\n[a, b] other"+
			"\n[moorebus: working memory keeps what it has under [a], since it was not saved yet: save or remove that to load what is in storage]", o.Observation)
		mem := r.Memory(run)
		require.Len(t, mem.WorkingMemory, 2)
		require.Equal(t, "new", mem.WorkingMemory[0].Value)
		require.Equal(t, "other", mem.WorkingMemory[1].Value)
	})
}

func of(r *rig, run events.Run) entrystore.Owner {
	return entrystore.Owner{Namespace: run.Namespace, Agent: r.Memory(run).Control.Agent.Name}
}

func TestActionsOnMemory(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		run, _ := remembering(t, r)
		for _, c := range []struct{ name, arguments, want, events string }{
			{"working_memory_remove", `{"tags":"a"}`, "Not found: working memory has no entry with exactly the tags [a].", ""},
			{"working_memory_add", `{"tags":"b, a a","value":"one"}`, "In working memory under [a_a, b].", "WorkingMemoryAdded"},
			{"working_memory_add", `{"tags":["a a","b","b"],"value":"two"}`, "In working memory under [a_a, b]; it replaced what was there.", "WorkingMemoryAdded"},
			{"working_memory_remove", `{"tags":"b"}`, "Not found: working memory has no entry with exactly the tags [b].", ""},
			{"storage_load", `{"tags":"b"}`, "Not found: storage has no entry with the tags [b].", ""},
			{"storage_search", `{}`, "Not found: storage has no such entry.", ""},
			{"storage_save", `{"tags":"b,c","value":"Three\nlines"}`, "Saved in storage under [b, c].", "StorageSaved"},
			{"storage_save", `{"tags":"b","value":"four"}`, "Saved in storage under [b].", "StorageSaved"},
			{"storage_search", `{"tags":"b","value":"THREE"}`, "Found 1:\n[b, c] Three lines", ""},
			{"storage_search", `{"value":""}`, "Found 2:\n[b] four\n[b, c] Three lines", ""},
			{"storage_load", `{"tags":"b"}`, "Found 2; in working memory now:\n[b] four\n[b, c] Three\nlines", "StorageLoaded"},
			{"working_memory_remove", `{"tags":"c,b"}`, "Removed [b, c] from working memory.", "WorkingMemoryRemoved"},
		} {
			before := len(r.Types(run))
			o := r.calls(run, c.name, c.arguments)
			require.True(t, o.Success, "%s: %s", c.name, o.Observation)
			require.Equal(t, codes.SuccessPrefix+c.want, o.Observation)
			types := strings.Join(r.Types(run)[before:], " ")
			types = strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(types, "Continue "), "LlmToolCall "), "ToolSuccess")
			require.Equal(t, c.events, strings.TrimSpace(types), "between the call and its result")
		}
		mem := r.Memory(run)
		require.Len(t, mem.WorkingMemory, 2)
		require.Equal(t, []string{"a_a", "b"}, mem.WorkingMemory[0].Tags)
		require.Equal(t, "two", mem.WorkingMemory[0].Value)
		require.True(t, mem.WorkingMemory[1].Loaded)
		require.Equal(t, "four", mem.WorkingMemory[1].Value)
	})
}

func TestActionsThatCannotBe(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		run, _ := remembering(t, r)
		long, many := strings.Repeat("v", entrystore.MaxValueBytes), strings.Repeat("x", entrystore.MaxTagBytes+1)
		for _, c := range []struct{ name, arguments, want string }{
			{"working_memory_add", `{"tags":"a"}`, "working_memory_add needs a value"},
			{"storage_save", `{"tags":"a","value":""}`, "storage_save needs a value"},
			{"storage_save", `{"value":"v"}`, "storage_save needs tags"},
			{"storage_load", `{"tags":" , "}`, "storage_load needs tags"},
			{"storage_load", `{"tags":null}`, "storage_load needs tags"},
			{"storage_load", `{"tags":"a","value":"v"}`, "takes tags alone"},
			{"storage_load", `{"tags":7}`, "tags must be a string"},
			{"storage_search", `{"tags":{"a":1}}`, "tags must be a string"},
			{"working_memory_remove", `{"tag":"a"}`, "unknown field"},
			{"working_memory_remove", `nonsense`, "do not fit"},
			{"working_memory_add", `{"tags":"a","value":"` + long + `"}`, "at most 65536 are allowed; split it"},
			{"storage_save", `{"tags":"` + many + `","value":"v"}`, "at most 128 are allowed"},
			{"storage_load", `{"tags":"a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q"}`, "17 tags, at most 16"},
		} {
			o := r.calls(run, c.name, c.arguments)
			require.False(t, o.Success)
			require.Equal(t, tool.CodeInvalidArguments, o.Code, o.Observation)
			require.Contains(t, o.Observation, c.want)
		}
		require.Empty(t, r.Memory(run).WorkingMemory)
		for _, kind := range r.Types(run) {
			require.NotContains(t, []string{"WorkingMemoryAdded", "StorageSaved", "StorageLoaded", "WorkingMemoryRemoved"}, kind)
		}
	})
}

// A load brings what fits, and says what is left.
func TestLoadsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		run, _ := remembering(t, r)
		for i := range 50 {
			e := events.Entry{Tags: []string{"all", fmt.Sprintf("n%02d", i)}, Value: strings.Repeat("\x01", 500)}
			require.NoError(t, entrystore.New(r.Journal).Save(t.Context(), of(r, run), entrystore.Observer, e))
		}
		o := r.calls(run, "storage_load", `{"tags":"all"}`)
		require.Contains(t, o.Observation, "Found 50; in working memory now:\n[all, n00]")
		require.Contains(t, o.Observation, "more were not loaded: give more tags")
		mem := r.Memory(run)
		require.Less(t, len(mem.WorkingMemory), 20)
		require.Greater(t, len(mem.WorkingMemory), 5)
		o = r.calls(run, "storage_search", `{"tags":"all"}`)
		require.Contains(t, o.Observation, "30 more are not shown")
		require.Less(t, len(o.Observation), 20*(builtinShown+100))
		o = r.calls(run, "storage_load", `{"tags":"all,n49"}`)
		require.Contains(t, o.Observation, "Found 1;")
	})
}

const builtinShown = 200

func TestSecretsDoNotReachMemory(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		run, _ := remembering(t, r, func(c *actor.Config) { c.Results.Secrets = []string{"hunter2-hunter2"} })
		require.NoError(t, entrystore.New(r.Journal).Save(t.Context(), of(r, run), entrystore.Actor, events.Entry{Tags: []string{"old"}, Value: "was hunter2-hunter2"}))
		require.True(t, r.calls(run, "working_memory_add", `{"tags":"a","value":"it is hunter2-hunter2"}`).Success)
		require.True(t, r.calls(run, "storage_save", `{"tags":"hunter2-hunter2","value":"hunter2-hunter2"}`).Success)
		require.Equal(t, "SUCCESS: Found 1; in working memory now:\n[old] was [REDACTED]", r.calls(run, "storage_load", `{"tags":"old"}`).Observation)
		for _, e := range r.Events(run) {
			switch e.Data.(type) {
			case *events.WorkingMemoryAdded, *events.StorageSaved, *events.StorageLoaded, *events.ToolSuccess:
				body, err := json.Marshal(e.Data)
				require.NoError(t, err)
				require.NotContains(t, string(body), "hunter2")
			}
		}
		got, err := entrystore.New(r.Journal).Get(t.Context(), of(r, run), []string{"[REDACTED]"})
		require.NoError(t, err)
		require.Equal(t, "[REDACTED]", got.Value)
	})
}

// refusing is storage that answers with an error, and counts.
type refusing struct {
	kv.Store
	err   error
	asked *int
}

func (s refusing) Put(ctx context.Context, of kv.Bucket, it kv.Item) (uint64, error) {
	if strings.HasPrefix(of.Name, buckets.ToolsPrefix) {
		return s.Store.Put(ctx, of, it)
	}
	*s.asked++
	return 0, s.err
}

func (s refusing) Each(context.Context, kv.Bucket, string) iter.Seq2[kv.Item, error] {
	return func(yield func(kv.Item, error) bool) {
		*s.asked++
		yield(kv.Item{}, s.err)
	}
}

func TestStorageThatDoesNotServe(t *testing.T) {
	denied := fmt.Errorf("make it with `moorebus init --storage default/a`: %w", journal.ErrDenied)
	for _, c := range []struct {
		err   error
		want  string
		asked int
	}{
		{err: denied, want: "moorebus init --storage default/a", asked: 1},
		{err: simtest.ErrAway, want: "does not answer", asked: 3},
	} {
		bubble(t, func(t *testing.T, r *rig) {
			asked := 0
			run, _ := remembering(t, r, func(cfg *actor.Config) {
				cfg.KV = refusing{Store: cfg.KV, err: c.err, asked: &asked}
			})
			for name, arguments := range map[string]string{
				"storage_save": `{"tags":"a","value":"v"}`, "storage_load": `{"tags":"a"}`, "storage_search": `{}`,
			} {
				asked = 0
				o := r.calls(run, name, arguments)
				require.False(t, o.Success)
				require.Equal(t, codes.Storage, o.Code)
				require.Contains(t, o.Observation, c.want)
				require.Equal(t, c.asked, asked, "an outage is asked again, a refusal is not")
			}
			require.True(t, r.calls(run, "working_memory_add", `{"tags":"a","value":"v"}`).Success, "which needs no storage")
		})
	}
}

func TestTheBreakerOfStorageOpens(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		asked := 0
		run, _ := remembering(t, r, func(c *actor.Config) {
			gated, err := toolset.NewWith(toolset.Options{Breakers: true}, memoryTools(t)...)
			require.NoError(t, err)
			c.Tools, c.KV = gated, refusing{Store: c.KV, err: simtest.ErrAway, asked: &asked}
		})
		for range 2 {
			require.Equal(t, codes.Storage, r.calls(run, "storage_load", `{"tags":"a"}`).Code)
		}
		require.Equal(t, codes.CircuitOpen, r.calls(run, "storage_load", `{"tags":"a"}`).Code)
		require.Equal(t, 5, asked)
	})
}

// A batch over several calls: each has its event and its one result.
func TestActionsInABatch(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		run, _ := remembering(t, r)
		reply := events.ToolCallReply{Confidence: 1}
		for i := range 20 {
			reply.Calls = append(reply.Calls, events.Call{
				ID: fmt.Sprint("b", i), Name: []string{"working_memory_add", "storage_save"}[i%2], Arguments: fmt.Sprintf(`{"tags":"t%d","value":"v%d"}`, i, i),
			})
		}
		r.Append(run, events.Planning, &events.LLMParallelToolCalls{ToolCallReply: reply})
		results := r.results(run)
		require.Len(t, results, 20)
		for _, result := range results {
			require.True(t, result.Success, result.Observation)
		}
		require.Len(t, r.Memory(run).WorkingMemory, 10)
		require.Equal(t, 10, r.Count(run, events.TypeStorageSaved))
		found, err := entrystore.New(r.Journal).Find(t.Context(), of(r, run), entrystore.Query{Limit: 100})
		require.NoError(t, err)
		require.Equal(t, 10, found.Total)
	})
}

// Storage is shared by the runs of an agent, and by nobody else.
func TestStorageOutlivesItsRun(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		run, _ := remembering(t, r)
		require.True(t, r.calls(run, "storage_save", `{"tags":"a","value":"kept"}`).Success)
		for name, want := range map[string]string{r.Memory(run).Control.Agent.Name: "kept", "somebody-else": "Not found"} {
			start := reducertest.StartOf("another", events.ModeTask)
			start.Tools, start.Agent.Name = r.specs, name
			require.Contains(t, r.calls(r.Start(start), "storage_load", `{"tags":"a"}`).Observation, want)
		}
	})
}

// What an approval policy holds back acts on nothing.
func TestActionsWaitForApproval(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		_, _ = remembering(t, r)
		start := reducertest.StartOf("ask first", events.ModeTask)
		start.Tools, start.Agent.Approval = r.specs, &events.Approval{Policy: events.ApproveTools, Tools: []string{"storage_save"}}
		run := r.Start(start)
		require.Equal(t, codes.NotApproved, r.calls(run, "storage_save", `{"tags":"a","value":"v"}`).Code)
		_, err := entrystore.New(r.Journal).Get(t.Context(), of(r, run), []string{"a"})
		require.ErrorIs(t, err, journal.ErrNotFound)
		require.Zero(t, r.Count(run, events.TypeStorageSaved))
	})
}

// belated is storage whose first answer comes while the second one is waited for.
type belated struct {
	kv.Store
	asked  *atomic.Int32
	second chan struct{}
}

func (s belated) Each(_ context.Context, of kv.Bucket, _ string) iter.Seq2[kv.Item, error] {
	return func(yield func(kv.Item, error) bool) {
		if !strings.HasPrefix(of.Name, "paged_") {
			yield(kv.Item{Key: "tag.a", Value: []byte(`["a"]`)}, nil)
		}
	}
}

func (s belated) Get(_ context.Context, of kv.Bucket, _ string) (kv.Item, error) {
	if strings.HasPrefix(of.Name, "paged_") {
		return kv.Item{}, journal.ErrNotFound
	}
	n := s.asked.Add(1)
	if n == 1 {
		<-s.second
	} else {
		close(s.second)
		time.Sleep(time.Second) // in the bubble
	}
	body, err := json.Marshal(events.Entry{Tags: []string{"a"}, Value: fmt.Sprint("answer ", n)})
	return kv.Item{Value: body, Stored: time.Now()}, err
}

// What the log says that was loaded is what the model is told: that of the attempt
// that counts, and not of one that was given up and came back.
func TestTheLastAttemptCounts(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		run, _ := remembering(t, r, func(c *actor.Config) {
			c.KV = belated{Store: c.KV, asked: new(atomic.Int32), second: make(chan struct{})}
		})
		o := r.calls(run, "storage_load", `{"tags":"a"}`)
		require.True(t, o.Success)
		require.Contains(t, o.Observation, "answer 2")
		require.Equal(t, "answer 2", r.Memory(run).WorkingMemory[0].Value)
	})
}
