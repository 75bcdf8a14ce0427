package list_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/pkg/events"
)

// manyRuns is how many runs of four events the benchmark lists.
const manyRuns = 5000

// BenchmarkList lists runs on a real server: from nothing, the first page, a later page, and by
// a text that one run has.
func BenchmarkList(b *testing.B) {
	bus := controltest.NATS(b, natsbus.InitOptions{})
	r := newRig(b, bus)
	var middle string
	for i := range manyRuns {
		id := r.start("news", "What is new?")
		r.Happens(id, events.Planning, controltest.TurnDone("Nothing at all."))
		if i == manyRuns/2 {
			middle = id
		}
	}
	page := func(b *testing.B, r *rig, q list.Query, want int) {
		page, err := r.Runs(b.Context(), "", q)
		require.NoError(b, err)
		require.Len(b, page.Runs, want)
	}
	b.Run("build", func(b *testing.B) {
		for b.Loop() {
			page(b, newRig(b, bus), list.Query{Agent: "news"}, list.DefaultLimit)
		}
	})
	for name, q := range map[string]list.Query{"first": {}, "later": {Cursor: middle}, "thousand": {Limit: list.MaxLimit}, "text": {Text: middle}} {
		b.Run(name, func(b *testing.B) {
			want := list.DefaultLimit
			if q.Limit > 0 {
				want = q.Limit
			}
			if q.Text != "" {
				want = 1
			}
			for b.Loop() {
				page(b, r, q, want)
			}
		})
	}
}
