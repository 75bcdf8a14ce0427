package llmtest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/llm"
)

// Same requires that the replies are the same, whatever their providers call the ending
// and whatever was sent for them. A reply without a Finish ends as it usually does.
func Same(t testing.TB, want, got llm.Response, about ...any) {
	t.Helper()
	require.Equal(t, usual(want), usual(got), about...)
}

func usual(r llm.Response) llm.Response {
	common := func(m llm.Meta, finish llm.Finish) llm.Meta {
		m.Dialect, m.RequestSHA256, m.FinishRaw = "", "", ""
		if m.Finish == "" {
			m.Finish = finish
		}
		return m
	}
	switch r := r.(type) {
	case llm.Text:
		r.Meta = common(r.Meta, llm.FinishStop)
		return r
	case llm.Structured:
		r.Meta = common(r.Meta, llm.FinishStop)
		return r
	case llm.ToolCalls:
		r.Meta = common(r.Meta, llm.FinishToolCalls)
		return r
	}
	return r
}
