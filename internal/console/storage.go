package console

import (
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/pkg/journal"
)

// parseStorage reads what --storage names.
func parseStorage(names []string) ([]journal.StorageOf, error) {
	all := make([]journal.StorageOf, 0, len(names))
	for _, name := range names {
		of, err := journal.ParseStorageOf(name)
		if err != nil {
			return nil, cli.Usage("--storage: %v", err)
		}
		all = append(all, of)
	}
	return all, nil
}
