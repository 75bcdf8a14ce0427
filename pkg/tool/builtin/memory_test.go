package builtin

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/pkg/tool"
)

func TestMemoryToolsAskForActions(t *testing.T) {
	t.Parallel()
	validator := schema.New(schema.Options{})
	for _, c := range []struct {
		name, arguments string
		want            tool.Action
	}{
		{WorkingMemoryAdd, `{"tags":"b, a a ,,b","value":" v "}`, tool.Action{Verb: tool.Add, Tags: []string{"b", "a a", "b"}, Value: " v "}},
		{StorageSave, `{"tags":["x,y"," z\tz "],"value":"v"}`, tool.Action{Verb: tool.Save, Tags: []string{"x", "y", "z z"}, Value: "v"}},
		{WorkingMemoryRemove, `{"tags":["a"]}`, tool.Action{Verb: tool.Remove, Tags: []string{"a"}}},
		{StorageLoad, `{"tags":"a"}`, tool.Action{Verb: tool.Load, Tags: []string{"a"}}},
		{StorageSearch, `{}`, tool.Action{Verb: tool.Search}},
		{StorageSearch, `{"tags":[],"value":"Text"}`, tool.Action{Verb: tool.Search, Value: "Text"}},
	} {
		made, err := New(c.name, Options{})
		require.NoError(t, err)
		def := made.Definition()
		require.Equal(t, tool.Idempotent, def.Effect)
		require.NoError(t, schema.Check(def.Schema))
		require.NoError(t, validator.Validate(def.Schema, c.arguments))
		// Under another definition it is the same tool.
		remembering, ok := tool.AsRemembering(tool.Redefine(made, tool.Definition{Pool: "web"}))
		require.True(t, ok)
		got, err := remembering.Action(tool.Call{Arguments: c.arguments})
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	made, err := New(StorageSave, Options{})
	require.NoError(t, err)
	require.ErrorContains(t, validator.Validate(made.Definition().Schema, `{"tags":"a"}`), "value")
}

// Without a memory there is nothing to act on.
func TestMemoryToolsCannotBeRun(t *testing.T) {
	t.Parallel()
	for _, name := range MemoryNames() {
		made, err := New(name, Options{})
		require.NoError(t, err)
		registry, err := tool.NewRegistry(made)
		require.NoError(t, err)
		out := registry.Execute(t.Context(), tool.Call{Name: name, Arguments: `{"tags":"a","value":"v"}`})
		require.Equal(t, tool.CodeNoMemory, out.Failure.Code)
		require.Contains(t, out.Failure.Message, name+" acts on an agent's memory")
	}
}

func TestPerform(t *testing.T) {
	t.Parallel()
	made, err := New(StorageLoad, Options{})
	require.NoError(t, err)
	clock, err := New(CurrentTime, Options{})
	require.NoError(t, err)
	registry, err := tool.NewRegistry(tool.Redefine(made, tool.Definition{Name: "recall"}), clock)
	require.NoError(t, err)
	var asked []tool.Action
	do := func(failure error) func(context.Context, tool.Action) (string, error) {
		return func(_ context.Context, a tool.Action) (string, error) {
			asked = append(asked, a)
			if a.Tags[0] == "panic" {
				panic("it does")
			}
			return "done", failure
		}
	}
	out := registry.Perform(t.Context(), tool.Call{Name: "recall", Arguments: `{"tags":"a"}`}, do(nil))
	require.Nil(t, out.Failure)
	require.Equal(t, "done", out.Result)
	require.Equal(t, []tool.Action{{Verb: tool.Load, Tags: []string{"a"}}}, asked)
	require.Equal(t, tool.CodeInvalidArguments, registry.Perform(t.Context(), tool.Call{Name: "recall", Arguments: `{}`}, do(nil)).Failure.Code)
	require.Equal(t, tool.CodePanic, registry.Perform(t.Context(), tool.Call{Name: "recall", Arguments: `{"tags":"panic"}`}, do(nil)).Failure.Code)
	passing := tool.Failf("away", "not now")
	passing.Passing = true
	asked = nil
	require.Equal(t, "away", registry.Perform(t.Context(), tool.Call{Name: "recall", Arguments: `{"tags":"a"}`}, do(passing)).Failure.Code)
	require.Len(t, asked, 3, "what passes is tried again")
	require.Nil(t, registry.Perform(t.Context(), tool.Call{Name: CurrentTime}, do(nil)).Failure, "other tools are run")
	_, ok := tool.AsRemembering(clock)
	require.False(t, ok)
}

func FuzzMemoryArguments(f *testing.F) {
	for _, seed := range []string{`{"tags":"a,b","value":"v"}`, `{"tags":["a",""]}`, `{"tags":7}`, `{"tags":[["a"]]}`, `[]`, ``, `{"tags":"\ud800"}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, arguments string) {
		for _, name := range MemoryNames() {
			made := newRemember(name).(*remember)
			a, err := made.Action(tool.Call{Arguments: arguments})
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
