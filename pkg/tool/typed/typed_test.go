package typed_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/tooltest"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type order struct {
	Article string      `json:"article" jsonschema:"the article's number"`
	Count   int64       `json:"count"`
	Price   json.Number `json:"price,omitempty"`
	Tags    []string    `json:"tags,omitempty"`
	Extra   any         `json:"extra,omitempty"`
}

func ordered(t *testing.T) tool.Tool {
	t.Helper()
	made, err := typed.New(tool.Definition{Name: "order", Description: "Orders an article."}, func(_ context.Context, in order) (string, error) {
		if in.Article == "none" {
			return "", tool.Failf("sold_out", "there is none left")
		}
		return fmt.Sprintf("%d %s %s %v %v", in.Count, in.Article, in.Price, in.Tags, in.Extra), nil
	})
	require.NoError(t, err)
	return made
}

func TestSuite(t *testing.T) {
	started := make(chan struct{}, 16)
	tooltest.Suite{
		Success: func(t *testing.T) tooltest.Case {
			return tooltest.Case{Tool: ordered(t), Arguments: `{"article":"a","count":9007199254740993,"price":0.10}`, Want: "9007199254740993 a 0.10 [] <nil>"}
		},
		Failure: func(t *testing.T) tooltest.Case {
			return tooltest.Case{Tool: ordered(t), Arguments: `{"article":"none","count":1}`, Code: "sold_out", Want: "none left"}
		},
		Panics: func(t *testing.T) tooltest.Case {
			made, err := typed.New(tool.Definition{Name: "boom"}, func(context.Context, struct{}) (string, error) { panic("kaboom") })
			require.NoError(t, err)
			return tooltest.Case{Tool: made, Want: "kaboom"}
		},
		Hangs: func(t *testing.T) tooltest.Hang {
			made, err := typed.New(tool.Definition{Name: "hang"}, func(ctx context.Context, _ struct{}) (string, error) {
				started <- struct{}{}
				<-ctx.Done()
				return "", ctx.Err()
			})
			require.NoError(t, err)
			return tooltest.Hang{Case: tooltest.Case{Tool: made}, Quiet: func() bool { return true }, Started: func(context.Context) error {
				<-started
				return nil
			}}
		},
		ShowsKey: func(t *testing.T) tooltest.Case {
			made, err := typed.New(tool.Definition{Name: "key"}, func(ctx context.Context, _ struct{}) (string, error) {
				call, ok := typed.CallFrom(ctx)
				if !ok {
					return "", errors.New("no call")
				}
				return call.IdempotencyKey(), nil
			})
			require.NoError(t, err)
			return tooltest.Case{Tool: made}
		},
	}.Run(t)
}

func TestSchema(t *testing.T) {
	schema := ordered(t).Definition().Schema
	require.JSONEq(t, `{"type":"object","properties":{
		"article":{"type":"string","description":"the article's number"},"count":{"type":"integer"},"price":{"type":"number"},
		"tags":{"type":["null","array"],"items":{"type":"string"}},"extra":true},
		"required":["article","count"],"additionalProperties":false}`, string(schema))
	require.Equal(t, tool.Once, ordered(t).Definition().Effect)
}

func TestArgumentsThatDoNotFit(t *testing.T) {
	for arguments, want := range map[string]string{
		``:                                   "article",
		`{"article":"a"}`:                    "count",
		`{"article":"a","count":"1"}`:        "count",
		`{"article":"a","count":1.5}`:        "count",
		`{"article":"a","count":1,"x":1}`:    "x",
		`{"article":"a","count":1}{}`:        "after top-level value",
		`{"article":"a","count":1e99}`:       "count",
		`{"Article":"a","count":1}`:          "rticle",
		`{"article":"a","count":1,"tags":1}`: "tags",
		`[]`:                                 "object",
		`{"article"`:                         "too early",
		`null`:                               "object",
	} {
		_, err := ordered(t).Run(t.Context(), tool.Call{Arguments: arguments})
		var f *tool.Failure
		require.ErrorAs(t, err, &f, arguments)
		require.Equal(t, tool.CodeInvalidArguments, f.Code)
		require.Contains(t, f.Message, want)
	}
	_, err := ordered(t).Run(t.Context(), tool.Call{Arguments: `{"count":"1","x":2}`})
	for _, want := range []string{"article", "/count: got string, want integer", "'x' not allowed"} {
		require.ErrorContains(t, err, want, "every violation is listed")
	}
}

func TestUntypedNumbersKeepTheirDigits(t *testing.T) {
	got, err := ordered(t).Run(t.Context(), tool.Call{Arguments: `{"article":"a","count":1,"extra":{"n":12345678901234567890.10}}`})
	require.NoError(t, err)
	require.Contains(t, got, "map[n:12345678901234567890.10]")
}

func TestOwnSchema(t *testing.T) {
	schema := json.RawMessage(`{"type":"object","properties":{"count":{"type":"integer","maximum":5},"article":{"type":"string"}}}`)
	made, err := typed.New(tool.Definition{Name: "order", Schema: schema, Effect: tool.Pure}, func(_ context.Context, in order) (string, error) {
		return fmt.Sprint(in.Count), nil
	})
	require.NoError(t, err)
	require.Equal(t, schema, made.Definition().Schema)
	_, err = made.Run(t.Context(), tool.Call{Arguments: `{"count":6}`})
	require.ErrorContains(t, err, "maximum")
	got, err := made.Run(t.Context(), tool.Call{Arguments: `{"count":5}`})
	require.NoError(t, err)
	require.Equal(t, "5", got)
}

// A result that is not a string is written as JSON.
func TestResults(t *testing.T) {
	structure, err := typed.New(tool.Definition{Name: "x"}, func(context.Context, struct{}) (map[string]int, error) { return map[string]int{"n": 1}, nil })
	require.NoError(t, err)
	got, err := structure.Run(t.Context(), tool.Call{})
	require.NoError(t, err)
	require.Equal(t, `{"n":1}`, got)
	odd, err := typed.New(tool.Definition{Name: "x"}, func(context.Context, struct{}) (func(), error) { return func() {}, nil })
	require.NoError(t, err)
	_, err = odd.Run(t.Context(), tool.Call{})
	require.ErrorContains(t, err, "cannot be written as JSON")
}

func TestNewRefuses(t *testing.T) {
	text := func(context.Context, string) (string, error) { return "", nil }
	_, err := typed.New(tool.Definition{Name: "x"}, text)
	require.ErrorContains(t, err, "must be a struct")
	_, err = typed.New(tool.Definition{Name: "x"}, func(context.Context, struct{ F func() }) (string, error) { return "", nil })
	require.Error(t, err)
	_, err = typed.New[order, string](tool.Definition{Name: "x"}, nil)
	require.ErrorContains(t, err, "nil")
	_, err = typed.New(tool.Definition{Name: "bad name"}, func(context.Context, order) (string, error) { return "", nil })
	require.ErrorContains(t, err, "bad name")
	_, err = typed.New(tool.Definition{Name: "x", Schema: json.RawMessage(`{"$ref":"http://nowhere.invalid/s.json"}`)},
		func(context.Context, order) (string, error) { return "", nil })
	require.Error(t, err)
}

func ExampleNew() {
	type input struct {
		Name string `json:"name" jsonschema:"whom to greet"`
	}
	greet, err := typed.New(tool.Definition{Name: "greet", Description: "Greets somebody."}, func(_ context.Context, in input) (string, error) {
		return "Hello, " + in.Name + "!", nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	registry, err := toolset.New(greet)
	if err != nil {
		fmt.Println(err)
		return
	}
	out := registry.Execute(context.Background(), tool.Call{Name: "greet", Arguments: `{"name":"Ada"}`})
	fmt.Println(out.Result)
	// Output: Hello, Ada!
}
