package console

import (
	"cmp"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/pkg/events"
)

// The widths of texts in tables, in characters.
const (
	taskWidth        = 48
	descriptionWidth = 72
)

// timestamp formats a time of the log: local time, to the second.
func timestamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// Runs writes a page of runs.
func Runs(w io.Writer, f Format, page list.Page) error {
	if f != Table {
		return Write(w, f, page)
	}
	rows := make([][]string, len(page.Runs))
	for i, r := range page.Runs {
		rows[i] = []string{
			r.RunID, string(r.State), strconv.FormatUint(r.N, 10), r.Agent,
			timestamp(r.Started), timestamp(r.Updated), Cut(r.Task, taskWidth),
		}
	}
	return WriteTable(w, []string{"RUN", "STATE", "N", "AGENT", "STARTED", "UPDATED", "TASK"}, rows)
}

// Agents writes names and hashes of stored agents.
func Agents(w io.Writer, f Format, agents []control.AgentInfo) error {
	if f != Table {
		return Write(w, f, agents)
	}
	rows := make([][]string, len(agents))
	for i, a := range agents {
		rows[i] = []string{a.Name, a.Hash}
	}
	return WriteTable(w, []string{"NAME", "HASH"}, rows)
}

// agentKeys is the usual order of the keys of an agent's definition.
var agentKeys = []string{
	"name", "system_prompt", "task", "mode", "llm", "models", "config", "budget", "approval",
	"output_schema", "tools", "blacklist",
}

// Agent writes a stored definition, which is JSON, as YAML or JSON. `moorebus agents put`
// accepts the output.
func Agent(w io.Writer, f Format, definition []byte) error {
	node, err := strict.ParseJSON(definition)
	if err != nil {
		return err
	}
	if f != YAML {
		return WriteJSON(w, rawJSON(definition))
	}
	place := func(m strict.Member) int {
		if i := slices.Index(agentKeys, m.Key); i >= 0 {
			return i
		}
		return len(agentKeys)
	}
	if mode := node.Get("mode"); mode != nil && mode.Text == "" {
		node, _ = node.Without("mode") // the run chooses it
	}
	slices.SortStableFunc(node.Members, func(a, b strict.Member) int { return cmp.Compare(place(a), place(b)) })
	return writeYAMLNode(w, node)
}

// Tools writes announced tools.
func Tools(w io.Writer, f Format, tools []events.ToolSpec) error {
	if f != Table {
		if tools == nil {
			tools = []events.ToolSpec{}
		}
		return Write(w, f, tools)
	}
	rows := make([][]string, len(tools))
	for i, t := range tools {
		rows[i] = []string{t.Name, t.Pool, t.Effect, t.Risk, Cut(t.Description, descriptionWidth)}
	}
	return WriteTable(w, []string{"NAME", "POOL", "EFFECT", "RISK", "DESCRIPTION"}, rows)
}
