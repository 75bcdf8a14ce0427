package events

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever says in the log what was used can be settled.
func TestEveryUsageIsBilled(t *testing.T) {
	t.Parallel()
	billed := 0
	for typ, r := range rowOf {
		empty := r.fresh
		p := empty()
		require.NoError(t, json.Unmarshal([]byte(`{"usage":{"input":7,"output":1,"total":8}}`), p))
		data, err := json.Marshal(p)
		require.NoError(t, err)
		u := Billed(p)
		if typ == TypeToolCallResult { // what a run that was called used is settled there
			require.Nil(t, u)
			continue
		}
		require.Equal(t, strings.Contains(string(data), `"usage":{"input":7`), u != nil, typ)
		if u != nil {
			billed++
			require.Equal(t, 7, u.Input, typ)
		}
	}
	require.Equal(t, 15, billed)
}
