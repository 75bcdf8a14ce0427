package mcptool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/pkg/tool"
)

// addLibrary adds resources, prompts and a tool that asks.
func addLibrary(s *mcp.Server) {
	read := func(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		if r.Params.URI == "pic://1" {
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: "pic://1", MIMEType: "image/png", Blob: []byte("PNG")}}}, nil
		}
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, Text: "the words of " + r.Params.URI}}}, nil
	}
	s.AddResource(&mcp.Resource{URI: "book://1", Name: "first", MIMEType: "text/plain", Description: "a book"}, read)
	s.AddResource(&mcp.Resource{URI: "pic://1", Name: "picture"}, read)
	s.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: "book://{n}", Name: "any book"}, read)
	s.AddPrompt(&mcp.Prompt{Name: "review", Description: "reviews", Arguments: []*mcp.PromptArgument{{Name: "book", Required: true}, {Name: "tone"}}},
		func(_ context.Context, r *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: "Review " + r.Params.Arguments["book"] + "."}}}}, nil
		})
	s.AddTool(&mcp.Tool{Name: "order", Description: "orders", InputSchema: map[string]any{"type": "object"}}, order)
}

// order asks two questions, in the way of the client's version of the protocol.
func order(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	sure := &mcp.ElicitParams{Mode: "form", Message: "Really order?", RequestedSchema: map[string]any{
		"type": "object", "properties": map[string]any{"sure": map[string]any{"type": "boolean"}}, "required": []string{"sure"},
	}}
	where := &mcp.ElicitParams{Mode: "form", Message: "Where to?", RequestedSchema: map[string]any{
		"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string", "minLength": 1}, "zip": map[string]any{"type": "integer"}}, "required": []string{"city"},
	}}
	if p := r.Session.InitializeParams(); p.ProtocolVersion >= stateless {
		first, asked := r.Params.InputResponses["sure"].(*mcp.ElicitResult)
		second, placed := r.Params.InputResponses["where"].(*mcp.ElicitResult)
		switch {
		case placed:
			return words(fmt.Sprintf("ordered to %v, %v", second.Content["city"], r.Params.RequestState)), nil
		case asked:
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"where": where}, RequestState: fmt.Sprint("sure ", first.Content["sure"])}, nil
		}
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"sure": sure}, RequestState: "began"}, nil
	}
	first, err := r.Session.Elicit(ctx, sure)
	if err != nil || first.Action != "accept" {
		return words("nothing was ordered"), err
	}
	second, err := r.Session.Elicit(ctx, where)
	if err != nil || second.Action != "accept" {
		return words("nothing was ordered"), err
	}
	return words(fmt.Sprintf("ordered to %v, sure %v", second.Content["city"], first.Content["sure"])), nil
}

func TestResourcesAndPrompts(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"library", "old"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			r := startStdio(t, mode)
			require.Equal(t, mode == "old", r.server.legacy)
			said := r.says(t, "list_resources")
			require.Contains(t, said, "book://1 | first | text/plain | a book\n")
			require.Contains(t, said, "book://{n} | any book")
			out := r.call(t, "read_resource", `{"uri": "book://7"}`)
			require.Nil(t, out.Failure)
			require.Equal(t, "the words of book://7", out.Result)
			out = r.call(t, "read_resource", `{"uri": "pic://1"}`)
			require.Nil(t, out.Failure)
			require.Equal(t, "[resource pic://1 image/png, 3 bytes, not kept]", out.Result)
			require.Equal(t, tool.CodeInvalidArguments, r.call(t, "read_resource", `{}`).Failure.Code)
			require.Equal(t, "review | arguments: book, tone? | reviews", r.says(t, "list_prompts"))
			out = r.call(t, "get_prompt", `{"name": "review", "arguments": {"book": "Emma"}}`)
			require.Nil(t, out.Failure)
			require.Equal(t, "user: Review Emma.", out.Result)
			require.Equal(t, tool.CodeFailed, r.call(t, "get_prompt", `{"name": "none"}`).Failure.Code)
			made, _ := r.Lookup("srv.read_resource")
			if mode == "library" {
				require.Equal(t, "Instructions of the server srv for its tools: Look before you leap.", made.Definition().Guide)
			}
		})
	}
}

// names are those of the tools.
func (r *rig) names() (names []string) {
	for _, d := range r.Definitions() {
		names = append(names, d.Name)
	}
	return names
}

// That a server has resources is its own word: it lowers class and risk only if it is trusted, or
// the tool file says so.
func TestClassOfResourcesAndPrompts(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		opts   Options
		effect tool.Effect
		risk   tool.Risk
	}{
		"not trusted": {Options{}, tool.Once, tool.High},
		"trusted":     {Options{TrustHints: true}, tool.Idempotent, tool.Low},
		"tool file":   {Options{Over: tool.Definition{Effect: tool.Pure, Risk: tool.Medium}}, tool.Pure, tool.Medium},
		"both":        {Options{TrustHints: true, Over: tool.Definition{Effect: tool.Once, Risk: tool.High}}, tool.Once, tool.High},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := startStdio(t, "books", func(o *Options) { o.TrustHints, o.Over = c.opts.TrustHints, c.opts.Over })
			require.Len(t, r.Definitions(), 4)
			for _, d := range r.Definitions() {
				require.Equal(t, c.effect, d.Effect, d.Name)
				require.Equal(t, c.risk, d.Risk, d.Name)
			}
		})
	}
}

func TestToolsByPattern(t *testing.T) {
	t.Parallel()
	r := startStdio(t, "library", func(o *Options) { o.Tools = []string{"*_resource*", "list_*", "echo", "none_*"} })
	require.Equal(t, []string{"srv.echo", "srv.list_prompts", "srv.list_resources"}, r.names())
	require.Contains(t, r.log.String(), "none_*")
}

// A question ends the call. With the answer the call goes on to the next question, and at last
// to its end. An answer that does not fit is asked for again.
func TestElicitation(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"library", "old"} {
		for _, where := range []string{"stdio", "http"} {
			t.Run(mode+" "+where, func(t *testing.T) {
				t.Parallel()
				var r *rig
				if where == "stdio" {
					r = startStdio(t, mode)
				} else {
					r = startWeb(t, newWeb(t, mode))
				}
				answers := map[string]string{}
				var asked, refused []string
				ask := func() (string, *tool.Failure) {
					ctx := callctx.WithQuestion(t.Context(), func(text string, fits func(string) error) error {
						answer, known := answers[strings.SplitN(text, " (", 2)[0]]
						if known {
							err := fits(answer)
							if err == nil {
								return nil
							}
							refused = append(refused, err.Error())
						}
						asked = append(asked, text)
						return tool.Failf(codes.InputRequired, "%s", text)
					})
					out := r.Execute(ctx, tool.Call{Run: "run", ID: "c", Name: "srv.order", Arguments: "{}"})
					return out.Result, out.Failure
				}
				_, f := ask()
				require.NotNil(t, f)
				require.Equal(t, codes.InputRequired, f.Code)
				require.Equal(t, []string{"The MCP server srv asks: Really order? (sure: boolean)"}, asked)
				answers["The MCP server srv asks: Really order?"] = "perhaps"
				_, f = ask()
				require.Equal(t, codes.InputRequired, f.Code)
				require.Equal(t, []string{"answer yes or no"}, refused)
				answers["The MCP server srv asks: Really order?"] = "Yes"
				_, f = ask()
				require.Equal(t, codes.InputRequired, f.Code)
				require.Equal(t, "The MCP server srv asks: Where to?\nAnswer with a JSON object of\n- city: string\n- zip: integer", strings.Replace(asked[2], " (optional)", "", 1))
				answers["The MCP server srv asks: Where to?\nAnswer with a JSON object of\n- city: string\n- zip: integer"] = `{"zip": 5}`
				_, f = ask()
				require.Equal(t, codes.InputRequired, f.Code)
				require.Len(t, refused, 2)
				answers["The MCP server srv asks: Where to?\nAnswer with a JSON object of\n- city: string\n- zip: integer"] = `{"city": "Rome", "zip": 5}`
				said, f := ask()
				require.Nil(t, f)
				require.Equal(t, "ordered to Rome, sure true", said)
			})
		}
	}
}

// Without anyone to ask the call fails, and says why.
func TestElicitationWithoutAHuman(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, r *rig) {
		require.False(t, r.has("order"))
	})
	r := startStdio(t, "library")
	f := r.failure(t, "order")
	require.Equal(t, codes.InputRequired, f.Code)
	require.ErrorContains(t, errors.New(f.Message), "nobody can be asked here: The MCP server srv asks: Really order?")
}

// Choices of a form may be anything, and so may an answer.
func TestChoicesThatAreNoTexts(t *testing.T) {
	t.Parallel()
	f := form{Properties: map[string]field{"a": {Enum: []any{map[string]any{"b": 1.0}, []any{}}}}}
	for answer, fits := range map[string]bool{`{"a":{"b":1}}`: true, `{"a":[]}`: true, `{"a":{"b":2}}`: false, `{"a":[1]}`: false, `{"a":"x"}`: false} {
		content, err := f.parse(answer)
		require.NoError(t, err)
		require.Equal(t, fits, f.check(content) == nil, answer)
	}
}
