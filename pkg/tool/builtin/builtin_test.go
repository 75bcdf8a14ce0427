package builtin

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/tooltest"
	"github.com/moorebus/moorebus/pkg/tool"
)

func TestNew(t *testing.T) {
	opts := Options{Root: t.TempDir(), Hosts: []string{"example.org"}}
	for _, name := range Names() {
		made, err := New(name, opts)
		require.NoError(t, err)
		def := made.Definition()
		require.NoError(t, def.Validate())
		require.Equal(t, name, def.Name)
		require.True(t, def.Effect.Repeatable())
		require.Equal(t, tool.Low, def.Risk)
		require.NotEmpty(t, def.Description)
	}
	_, err := New("shell", opts)
	require.ErrorContains(t, err, `"shell" not found; there are: ask_human, calculator, current_time, http_get, read_file`)
	_, err = New(readFileName, Options{})
	require.ErrorContains(t, err, "set its root")
	_, err = New(readFileName, Options{Root: t.TempDir() + "/none"})
	require.Error(t, err)
	_, err = New(httpGetName, Options{})
	require.ErrorContains(t, err, "allowed hosts")
}

func currentTimeCase(t *testing.T, arguments string) tooltest.Case {
	t.Helper()
	clock := func() time.Time { return time.Date(2024, 7, 1, 12, 30, 5, 7, time.UTC) }
	made, err := New(CurrentTime, Options{Now: clock})
	require.NoError(t, err)
	return tooltest.Case{Tool: made, Arguments: arguments}
}

func TestCurrentTimeSuite(t *testing.T) {
	tooltest.Suite{
		Success: func(t *testing.T) tooltest.Case {
			c := currentTimeCase(t, `{"timezone":"Europe/Madrid"}`)
			c.Want = "2024-07-01T14:30:05+02:00"
			return c
		},
		Failure: func(t *testing.T) tooltest.Case {
			c := currentTimeCase(t, `{"timezone":"Mars/Olympus"}`)
			c.Code, c.Want = tool.CodeInvalidArguments, `unknown time zone "Mars/Olympus"`
			return c
		},
	}.Run(t)
}

func TestCurrentTimeZones(t *testing.T) {
	for _, arguments := range []string{"", "{}", `{"timezone":""}`, `{"timezone":"UTC"}`} {
		c := currentTimeCase(t, arguments)
		got, err := c.Tool.Run(t.Context(), tool.Call{Arguments: arguments})
		require.NoError(t, err)
		require.Equal(t, "2024-07-01T12:30:05Z", got)
	}
	for _, zone := range []string{"Local", "local", "../../etc/passwd", "/etc/localtime"} {
		c := currentTimeCase(t, `{"timezone":"`+zone+`"}`)
		_, err := c.Tool.Run(t.Context(), tool.Call{Arguments: c.Arguments})
		require.ErrorContains(t, err, "unknown time zone")
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAskHumanSuite(t *testing.T) {
	asking := func(arguments string) tooltest.Case {
		made, err := New(AskHuman, Options{})
		require.NoError(t, err)
		require.True(t, made.Definition().Asks)
		return tooltest.Case{Tool: made, Arguments: arguments}
	}
	tooltest.Suite{
		Success: func(*testing.T) tooltest.Case {
			c := asking(`{"question":"Which?","answer":" the \"first\" one "}`)
			c.Want = ` the "first" one `
			return c
		},
		Failure: func(*testing.T) tooltest.Case {
			c := asking(`{"question":"Which?"}`)
			c.Code, c.Want = tool.CodeFailed, "no human has answered"
			return c
		},
	}.Run(t)
	_, err := asking("").Tool.Run(t.Context(), tool.Call{Arguments: `{"answer":7}`})
	require.ErrorContains(t, err, "do not fit")
	renamed := tool.Redefine(asking("").Tool, tool.Definition{Name: "boss"})
	require.True(t, renamed.Definition().Asks, "under whatever name")
}

func TestMemoryToolsAskForActions(t *testing.T) {
	t.Parallel()
	validator := schema.New(schema.Options{})
	for _, c := range []struct {
		name, arguments string
		want            callctx.Action
	}{
		{workingMemoryAdd, `{"tags":"b, a a ,,b","value":" v "}`, callctx.Action{Verb: callctx.Add, Tags: []string{"b", "a a", "b"}, Value: " v "}},
		{storageSave, `{"tags":["x,y"," z\tz "],"value":"v"}`, callctx.Action{Verb: callctx.Save, Tags: []string{"x", "y", "z z"}, Value: "v"}},
		{workingMemoryRemove, `{"tags":["a"]}`, callctx.Action{Verb: callctx.Remove, Tags: []string{"a"}}},
		{storageLoad, `{"tags":"a"}`, callctx.Action{Verb: callctx.Load, Tags: []string{"a"}}},
		{storageSearch, `{}`, callctx.Action{Verb: callctx.Search}},
		{storageSearch, `{"tags":[],"value":"Text"}`, callctx.Action{Verb: callctx.Search, Value: "Text"}},
	} {
		made, err := New(c.name, Options{})
		require.NoError(t, err)
		def := made.Definition()
		require.Equal(t, tool.Idempotent, def.Effect)
		require.NoError(t, schema.Check(def.Schema))
		require.NoError(t, validator.Validate(def.Schema, c.arguments))
		// Under another definition it is the same tool.
		redefined := tool.Redefine(made, tool.Definition{Pool: "web"})
		require.True(t, callctx.UsesMemory(redefined))
		var got callctx.Action
		_, err = redefined.Run(callctx.WithMemory(t.Context(), func(_ context.Context, a callctx.Action) (string, error) {
			got = a
			return "", nil
		}), tool.Call{Arguments: c.arguments})
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	made, err := New(storageSave, Options{})
	require.NoError(t, err)
	require.ErrorContains(t, validator.Validate(made.Definition().Schema, `{"tags":"a"}`), "value")
}

// Without a memory there is nothing to act on.
func TestMemoryToolsCannotBeRun(t *testing.T) {
	t.Parallel()
	for _, name := range MemoryNames() {
		made, err := New(name, Options{})
		require.NoError(t, err)
		registry, err := toolset.New(made)
		require.NoError(t, err)
		out := registry.Execute(t.Context(), tool.Call{Name: name, Arguments: `{"tags":"a","value":"v"}`})
		require.Equal(t, "no_memory", out.Failure.Code)
		require.Contains(t, out.Failure.Message, name+" acts on an agent's memory")
	}
}

func TestMemoryIsUsed(t *testing.T) {
	t.Parallel()
	made, err := New(storageLoad, Options{})
	require.NoError(t, err)
	clock, err := New(CurrentTime, Options{})
	require.NoError(t, err)
	registry, err := toolset.New(tool.Redefine(made, tool.Definition{Name: "recall"}), clock)
	require.NoError(t, err)
	var asked []callctx.Action
	call := func(name, arguments string, failure error) toolset.Outcome {
		return registry.Execute(callctx.WithMemory(t.Context(), func(_ context.Context, a callctx.Action) (string, error) {
			asked = append(asked, a)
			if a.Tags[0] == "panic" {
				panic("it does")
			}
			return "done", failure
		}), tool.Call{Name: name, Arguments: arguments})
	}
	out := call("recall", `{"tags":"a"}`, nil)
	require.Nil(t, out.Failure)
	require.Equal(t, "done", out.Result)
	require.Equal(t, []callctx.Action{{Verb: callctx.Load, Tags: []string{"a"}}}, asked)
	require.Equal(t, tool.CodeInvalidArguments, call("recall", `{}`, nil).Failure.Code)
	require.Equal(t, codes.Panic, call("recall", `{"tags":"panic"}`, nil).Failure.Code)
	passing := tool.Failf("away", "not now")
	passing.Passing = true
	asked = nil
	require.Equal(t, "away", call("recall", `{"tags":"a"}`, passing).Failure.Code)
	require.Len(t, asked, 3, "what passes is tried again")
	require.Nil(t, call(CurrentTime, "", nil).Failure, "other tools are run")
	require.False(t, callctx.UsesMemory(clock))
}

func FuzzMemoryArguments(f *testing.F) {
	for _, seed := range []string{`{"tags":"a,b","value":"v"}`, `{"tags":["a",""]}`, `{"tags":7}`, `{"tags":[["a"]]}`, `[]`, ``, `{"tags":"\ud800"}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, arguments string) {
		for _, name := range MemoryNames() {
			made := newRemember(name).(*remember)
			a, err := made.action(tool.Call{Arguments: arguments})
			if err != nil {
				var failure *tool.Failure
				require.ErrorAs(t, err, &failure)
				continue
			}
			for _, tag := range a.Tags {
				require.NotEmpty(t, tag)
				require.NotContains(t, tag, ",")
			}
			require.True(t, json.Valid([]byte(arguments)) || arguments == "" || len(a.Tags) == 0)
		}
	})
}
