// Package all is the list of the features.
package all

import (
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/feature/clienttools"
	"github.com/moorebus/moorebus/internal/feature/compare"
	"github.com/moorebus/moorebus/internal/feature/history"
	"github.com/moorebus/moorebus/internal/feature/quotas"
	"github.com/moorebus/moorebus/internal/feature/schedules"
	"github.com/moorebus/moorebus/internal/feature/storage"
	"github.com/moorebus/moorebus/internal/feature/webhooks"
)

// Features returns all features.
func Features() feature.Set {
	return feature.Set{schedules.Feature(), webhooks.Feature(), quotas.Feature(), compare.Feature(), storage.Feature(), clienttools.Feature(), history.Feature()}
}
