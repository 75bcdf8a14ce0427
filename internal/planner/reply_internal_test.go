package planner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/schema"
)

// What is wrong with an answer is said of the answer.
func TestProblemsOfAnAnswer(t *testing.T) {
	t.Parallel()
	v := schema.New(schema.Options{})
	for answer, says := range map[string]string{"forty-two": "the answer is not valid JSON", "{}": "the answer does not match it"} {
		err := v.Validate([]byte(`{"type":"object","required":["n"]}`), answer)
		require.ErrorContains(t, err, "the arguments")
		require.Contains(t, ofAnswer(err.Error()), says)
		require.NotContains(t, ofAnswer(err.Error()), "the arguments")
		require.NotContains(t, ofAnswer(err.Error()), "the tool's")
	}
}
