package cli

import "github.com/moorebus/moorebus/pkg/events"

// CheckRunIDs returns a usage error for the first argument that cannot be a run's id.
func CheckRunIDs(ids []string) error {
	for _, id := range ids {
		if err := events.CheckID(id); err != nil {
			return Usage("%q is not a run: %w", id, err)
		}
	}
	return nil
}
