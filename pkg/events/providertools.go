package events

import (
	"encoding/json"
	"fmt"
)

// The bounds of [Agent.ProviderTools]: how many there are, and the bytes of each.
const (
	maxProviderTools     = 32
	maxProviderToolBytes = 64 << 10
)

// CheckProviderTools reports the first of the provider's tools that is none, by its key.
func (a *Agent) CheckProviderTools() error {
	if len(a.ProviderTools) > maxProviderTools {
		return fmt.Errorf("provider_tools: has %d tools; at most %d are allowed", len(a.ProviderTools), maxProviderTools)
	}
	for i, raw := range a.ProviderTools {
		var t struct {
			Type string `json:"type"`
		}
		switch {
		case len(raw) > maxProviderToolBytes:
			return fmt.Errorf("provider_tools[%d]: has %d bytes; at most %d are allowed", i, len(raw), maxProviderToolBytes)
		case !isObject(raw) || json.Unmarshal(raw, &t) != nil || t.Type == "":
			return fmt.Errorf("provider_tools[%d]: is not an object with a type, such as {type: web_search}", i)
		case t.Type == "function":
			return fmt.Errorf("provider_tools[%d]: is a function, which the provider does not carry out; describe it in a tool file, or under client_tools", i)
		}
	}
	return nil
}
