package schedules

import (
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/feature/schedules/row"
)

// Feature returns the feature.
func Feature() feature.Feature {
	return feature.Feature{Row: row.Row(), Commands: []feature.Command{command}, New: func(c *control.Controller) feature.Part {
		s := New(c)
		return feature.Part{Rows: s.rows(), Run: s.Run}
	}}
}
