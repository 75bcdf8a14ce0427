package storage

import (
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
)

// Feature returns the feature.
func Feature() feature.Feature {
	return feature.Feature{Row: entrystore.Row(), Commands: []feature.Command{command}, New: func(c *control.Controller) feature.Part {
		return feature.Part{Rows: New(c).rows()}
	}}
}
