package agentfile

import (
	"errors"
	"strconv"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
)

// CheckLimits reports every limit of a budget that is written down as 0, by the
// names that a budget has for them. Nobody means by it what it would do: to have
// no limit one leaves it out, and a run that may use nothing need not be started.
// advice says in each error what to do instead. n may be nil.
func CheckLimits(n *strict.Node, path, advice string) error {
	if n == nil {
		return nil
	}
	var errs []error
	for _, m := range n.Members {
		if isZero(m.Value) {
			errs = append(errs, m.Value.Errorf(joined(path, m.Key), "is 0, which would allow nothing; %s", advice))
		}
	}
	return errors.Join(errs...)
}

func isZero(n *strict.Node) bool {
	switch n.Kind {
	case strict.Number:
		v, err := strconv.ParseFloat(n.Text, 64)
		return err == nil && v == 0
	case strict.String:
		d, err := time.ParseDuration(n.Text)
		return err == nil && d == 0
	}
	return false
}

func joined(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
