package quotas

import (
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/feature/quotas/row"
)

// Feature returns the feature.
func Feature() feature.Feature {
	return feature.Feature{Row: row.Row(), Commands: []feature.Command{command}, New: func(c *control.Controller) feature.Part {
		a := New(c)
		return feature.Part{Rows: a.rows(), Run: a.Run}
	}}
}
