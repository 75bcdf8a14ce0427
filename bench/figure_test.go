package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTargets(t *testing.T) {
	t.Parallel()
	bare := figure{Value: 120, Unit: "1/s"}
	require.Equal(t, "met: at least 0.6 of the floor", bare.beside(200, "floor").least(0.6).verdict())
	require.Equal(t, "met: at least 0.6 of the floor", bare.least(0.6).beside(200, "floor").verdict(), "in any order")
	require.Equal(t, "MISSED: at least 0.61 of the floor", bare.beside(200, "floor").least(0.61).verdict())
	require.Equal(t, "MISSED: at most 0.5 of the floor", bare.beside(200, "floor").most(0.5).verdict())
	require.Equal(t, "met: at most 120 1/s", bare.most(120).verdict())
	require.Equal(t, "MISSED: at least 121 1/s", bare.least(121).verdict())
	require.Empty(t, bare.beside(200, "floor").verdict())
}

func TestMedians(t *testing.T) {
	t.Parallel()
	var rounds [][]figure
	for _, r := range [][2]float64{{10, 40}, {30, 20}, {20, 10}} {
		rounds = append(rounds, []figure{figure{What: "x", Value: r[0]}.beside(r[1], "floor").least(1)})
	}
	f := medians(rounds)[0]
	require.Equal(t, []float64{20, 10, 30, 20, 1}, []float64{f.Value, f.Low, f.High, f.Floor, f.Ratio})
	require.Equal(t, 3, f.Rounds)
	require.True(t, f.Met, "it is judged by the medians")
	require.Equal(t, 2.5, median([]float64{4, 1, 3, 2}))
}

func TestTable(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	require.NoError(t, print(&out, "table", medians([][]figure{
		{figure{Bench: "b", Case: "c", What: "w", Unit: "µs", Value: 0.5}.most(1)}, {{Value: 1500}}, {{Value: 3}},
	})))
	require.Equal(t, strings.TrimLeft(`
bench  case  what  value  rounds       least/median  unit  floor  ratio  floor is  target
b      c     w     3      0.5000-1500                µs                            MISSED: at most 1 µs
`, "\n"), out.String())
}
