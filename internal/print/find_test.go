package print

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

func TestFindRun(t *testing.T) {
	const first, second, third = "0198c5a0-5a6b-7c00-8000-000000000001", "0198c5a0-5a6b-7c00-8000-000000000002", "0298c5a0-5a6b-7c00-8000-000000000003"
	var runs []events.Run
	for _, id := range []string{second, third, first} {
		runs = append(runs, events.NewRun("default", id, 1))
	}
	find := FinderOf(append(runs, events.NewRun("other", "0398c5a0-5a6b-7c00-8000-000000000004", 1)), "default")
	for arg, want := range map[string]string{
		first: first, "0198c5a0-5a6b-7c00-8000-000000000002": second, "0198c5a0-5a6b-7c00-8000-00000000000": "", "02": third, "0": "", "03": "",
		"@last": third, "@first": "", "": "", "xyz": "", "0298c5a0-5a6b-7c00-8000-000000000003a": "",
		"0498c5a0-5a6b-7c00-8000-000000000009": "0498c5a0-5a6b-7c00-8000-000000000009", // a whole id is not looked up
	} {
		got, err := FindRun(t.Context(), arg, find)
		require.Equal(t, want, got, arg)
		require.Equal(t, want == "", err != nil, arg)
	}
	_, err := FindRun(t.Context(), "01", find)
	require.EqualError(t, err, "01 is the beginning of several runs; write more of it:\n  "+second+"    \n  "+first+"    ")
}
