package compare

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The steps lead from a's calls to b's, as many as possible are the same, and no two of a gap
// could be one that is changed.
func TestOpsLeadFromAToB(t *testing.T) {
	calls := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Call {
		return Call{N: rapid.Uint64().Draw(t, "n"), Name: rapid.SampledFrom([]string{"search", "pay"}).Draw(t, "name"),
			Arguments: rapid.SampledFrom([]string{`{"a":1}`, `{"a":2}`, `{"a":3}`}).Draw(t, "arguments")}
	}), 0, 25)
	rapid.Check(t, func(t *rapid.T) {
		a, b := calls.Draw(t, "a"), calls.Draw(t, "b")
		var gotA, gotB []Call
		same, removed, added := 0, map[string]bool{}, map[string]bool{}
		for _, op := range align(a, b) {
			require.Equal(t, op.A == nil, op.Op == Added)
			require.Equal(t, op.B == nil, op.Op == Removed)
			if op.A != nil {
				gotA = append(gotA, *op.A)
			}
			if op.B != nil {
				gotB = append(gotB, *op.B)
			}
			switch op.Op {
			case Same:
				same++
				require.Equal(t, op.A.Name+op.A.Arguments, op.B.Name+op.B.Arguments)
			case Changed:
				require.Equal(t, op.A.Name, op.B.Name)
				require.NotEqual(t, op.A.Arguments, op.B.Arguments)
			case Removed:
				removed[op.A.Name] = true
			case Added:
				added[op.B.Name] = true
			}
			if op.Op == Same || op.Op == Changed {
				clear(removed)
				clear(added)
			}
			for name := range removed {
				require.False(t, added[name], "removed and added beside each other: %s", name)
			}
		}
		require.Equal(t, append([]Call{}, a...), append([]Call{}, gotA...))
		require.Equal(t, append([]Call{}, b...), append([]Call{}, gotB...))
		require.Equal(t, longest(a, b), same)
	})
}

// longest is the length of the longest common subsequence, by the textbook.
func longest(a, b []Call) int {
	row := make([]int, len(b)+1)
	for _, x := range a {
		last := 0
		for j, y := range b {
			above := row[j+1]
			if x.Name+x.Arguments == y.Name+y.Arguments {
				row[j+1] = last + 1
			} else {
				row[j+1] = max(above, row[j])
			}
			last = above
		}
	}
	return row[len(b)]
}

// A table of 10,000 by 10,000 calls would have 800 MB.
func TestLongRunsNeedNoTable(t *testing.T) {
	long := func(seed uint64) []Call {
		r, calls := rand.New(rand.NewPCG(seed, 0)), make([]Call, 10_000)
		for i := range calls {
			calls[i] = Call{Name: "search", Arguments: fmt.Sprint(r.IntN(500))}
		}
		return calls
	}
	a, b := long(1), long(2)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	align(a, b)
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(100<<20))
}
