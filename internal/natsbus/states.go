package natsbus

import (
	"fmt"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
)

// checkStates refuses states that can have no consumer of their own: what is no
// token, and what the consumer of a pool of tools is called like.
func checkStates(states []events.State) error {
	for _, state := range states {
		if !events.ValidToken(string(state)) {
			return fmt.Errorf("state %q is not a token of [a-z0-9][a-z0-9_-]{0,62}", state)
		}
		if !slices.Contains(actingStates, state) && strings.HasPrefix(string(state), string(events.Acting)+"_") {
			return fmt.Errorf("state %q: names that begin with %s_ are those of pools' consumers", state, events.Acting)
		}
	}
	return nil
}
