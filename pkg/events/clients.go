package events

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// What the run's own client stands for: its tools are of a pool that no actor may have,
// and its model is a provider that every planner knows.
const (
	ClientPool     = "client"
	ClientProvider = "client"
)

// How long the client has for a call of one of its tools.
const (
	ClientTimeout    = Duration(10 * time.Minute)
	MaxClientTimeout = Duration(720 * time.Hour)
)

// ClientTool is a tool that the run's own client carries out.
type ClientTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema"`
	// Risk is empty for none.
	Risk string `json:"risk,omitempty"`
	// Timeout is at most [MaxClientTimeout]; 0: [ClientTimeout].
	Timeout Duration `json:"timeout,omitempty"`
}

// Spec returns the tool as a run pins it. Its calls are never repeated by themselves.
func (t ClientTool) Spec() ToolSpec {
	s := ToolSpec{
		Name: t.Name, Description: t.Description, Schema: t.Schema, Effect: "once", Pool: ClientPool, Risk: t.Risk,
		Client: true, Timeout: t.Timeout,
	}
	if s.Risk == "" {
		s.Risk = Risks()[0]
	}
	if s.Timeout == 0 {
		s.Timeout = ClientTimeout
	}
	return s
}

var clientToolName = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)

// checkClientTools reports the first of the client's tools that is none, by its key.
func (a Agent) checkClientTools() error {
	for i, t := range a.ClientTools {
		key := fmt.Sprintf("client_tools[%d]", i)
		_, risk := RiskRank(t.Risk)
		switch {
		case !clientToolName.MatchString(t.Name):
			return fmt.Errorf("%s.name: %q is not a tool's name; use 1 to 64 of a-z A-Z 0-9 _ . -", key, t.Name)
		case strings.HasPrefix(t.Name, ReservedPrefix):
			return fmt.Errorf("%s.name: %q: names that begin with %s are Moorebus' own; choose another name", key, t.Name, ReservedPrefix)
		case slices.ContainsFunc(a.ClientTools[:i], func(o ClientTool) bool { return o.Name == t.Name }):
			return fmt.Errorf("%s.name: %q stands there twice; rename or remove one of the two", key, t.Name)
		case t.Description == "":
			return fmt.Errorf("%s.description: is missing; say to the model what %s does", key, t.Name)
		case !isObject(t.Schema):
			return fmt.Errorf("%s.schema: must be a JSON Schema object; write {type: object} for a tool without parameters", key)
		case !risk:
			return fmt.Errorf("%s.risk: %q is not a risk; use low, medium, high or critical", key, t.Risk)
		case t.Timeout < 0 || t.Timeout > MaxClientTimeout:
			return fmt.Errorf("%s.timeout: must be above 0 and at most %s, is %s", key, hours(MaxClientTimeout), time.Duration(t.Timeout))
		}
	}
	return nil
}

func hours(d Duration) string { return fmt.Sprintf("%dh", int(time.Duration(d).Hours())) }
