package agent

import (
	"errors"
	"fmt"
	"slices"

	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/pkg/events"
)

// checkNames reports names that are none, an approval policy that cannot be evaluated,
// and tools of the policy and of the blacklist that the agent does not have: most likely
// they are misspelled, and the tool that was meant would run.
func checkNames(def *events.Agent) error {
	if err := def.CheckNames(); err != nil {
		return err
	}
	errs := []error{approval.New().Check(def.Approval)}
	report := func(where string, names []string) {
		for _, name := range names {
			has := func(ref string) bool { _, bare := events.SplitTool(ref); return bare == name }
			if !slices.ContainsFunc(def.Tools, has) {
				errs = append(errs, fmt.Errorf("%s: the agent has no tool %q; it has %q", where, name, def.Tools))
			}
		}
	}
	report("blacklist", def.Blacklist)
	if def.Approval != nil {
		report("approval.tools", def.Approval.Tools)
	}
	return errors.Join(errs...)
}
