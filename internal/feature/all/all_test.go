package all_test

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/feature/all"
	"github.com/moorebus/moorebus/internal/feature/row"
	"github.com/moorebus/moorebus/internal/feature/rows"
)

// The tables that know only the rows know the rows of exactly the features that there are.
func TestEveryFeatureHasItsRow(t *testing.T) {
	var of []row.Row
	for _, f := range all.Features() {
		require.NotNil(t, f.New, f.Name)
		if bare := (row.Row{Name: f.Name}); !reflect.DeepEqual(bare, f.Row) {
			of = append(of, f.Row)
		}
	}
	require.Equal(t, rows.All(), of)
}
