package builtin

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/tooltest"
	"github.com/moorebus/moorebus/pkg/tool"
)

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
