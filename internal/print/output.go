// Package print shows runs, agents, tools and the state of an installation to
// people and to scripts: lines, tables, JSON and YAML on a writer.
//
// It decides nothing and changes nothing. A log holds other people's text, so output for a
// terminal shows control characters as escapes. JSON output is the stored bytes. Each write
// is whole lines.
package print

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/pkg/events"
)

// Format is an output format.
type Format string

// The formats.
const (
	Text  Format = "text"
	Table Format = "table"
	JSON  Format = "json"
	YAML  Format = "yaml"
)

// ParseFormat parses the value of -o. The usage error names the formats of the command.
func ParseFormat(text string, allowed ...Format) (Format, error) {
	if slices.Contains(allowed, Format(text)) {
		return Format(text), nil
	}
	return "", cli.Usage("--output: %q is not a format; use %s", text, Formats(allowed...))
}

// AddOutputFlag adds -o with the formats of a command, of which the first is the default.
func AddOutputFlag(cmd *cobra.Command, output *string, formats ...Format) {
	cmd.Flags().StringVarP(output, "output", "o", string(formats[0]), "format of the output: "+Formats(formats...))
	names := make([]string, len(formats))
	for i, f := range formats {
		names[i] = string(f)
	}
	cli.Complete(cmd, "output", names...)
}

// Formats lists formats for a message, such as "table, json or yaml".
func Formats(allowed ...Format) string {
	names := make([]string, len(allowed))
	for i, f := range allowed {
		names[i] = string(f)
	}
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// WriteJSON writes a value as indented JSON.
func WriteJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// WriteYAML writes a value as YAML, with the keys, the order and the numbers of its JSON.
func WriteYAML(w io.Writer, v any) error {
	var buf bytes.Buffer
	encoder := json.NewEncoder(&buf)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return err
	}
	node, err := strict.ParseJSON(buf.Bytes())
	if err != nil {
		return err
	}
	return writeYAMLNode(w, node)
}

func writeYAMLNode(w io.Writer, node *strict.Node) error {
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	if err := encoder.Encode(yamlNode(node)); err != nil {
		return err
	}
	return encoder.Close()
}

func yamlNode(n *strict.Node) *yaml.Node {
	switch n.Kind {
	case strict.Object:
		y := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Style: flow(len(n.Members))}
		for _, m := range n.Members {
			y.Content = append(y.Content, yamlText(m.Key), yamlNode(m.Value))
		}
		return y
	case strict.Array:
		y := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Style: flow(len(n.Items))}
		for _, item := range n.Items {
			y.Content = append(y.Content, yamlNode(item))
		}
		return y
	case strict.Number:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: numberTag(n.Text), Value: n.Text}
	case strict.Bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: n.Text}
	case strict.String:
		return yamlText(n.Text)
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
}

// yamlText returns a string node. It is quoted if its lines are not safe in a block, or if
// some version of YAML reads it as another type.
func yamlText(text string) *yaml.Node {
	y := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
	switch {
	case strings.Contains(text, "\n") && !safeBlock(text):
		y.Style = yaml.DoubleQuotedStyle
	case slices.Contains([]string{"y", "n", "yes", "no", "on", "off"}, strings.ToLower(text)):
		y.Style = yaml.DoubleQuotedStyle
	}
	return y
}

// safeBlock reports whether lines are safe in a block: none has white space that could be
// read as indentation.
func safeBlock(text string) bool {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for _, line := range lines {
		if strings.HasPrefix(line, "\t") || strings.TrimRight(line, " \t\r") != line {
			return false
		}
	}
	return lines[0] != "" && lines[0][0] != ' '
}

// flow returns the style of a collection: an empty one is written `{}` or `[]`.
func flow(length int) yaml.Style {
	if length == 0 {
		return yaml.FlowStyle
	}
	return 0
}

func numberTag(text string) string {
	if strings.ContainsAny(text, ".eE") {
		return "!!float"
	}
	return "!!int"
}

// Write writes a value as JSON or YAML.
func Write(w io.Writer, f Format, v any) error {
	if f == YAML {
		return WriteYAML(w, v)
	}
	return WriteJSON(w, v)
}

// WriteTable writes rows in columns below their headings. Cells become [Plain].
func WriteTable(w io.Writer, headings []string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, row := range append([][]string{headings}, rows...) {
		cells := make([]string, len(row))
		for i, cell := range row {
			if cells[i] = Plain(cell); cells[i] == "" && i < len(row)-1 {
				cells[i] = "-"
			}
		}
		if _, err := fmt.Fprintln(t, strings.Join(cells, "\t")); err != nil {
			return err
		}
	}
	return t.Flush()
}

// The widths of texts in tables, in characters: of tasks and values, and of sentences.
const (
	TaskWidth        = 48
	DescriptionWidth = 72
)

// timestamp formats a time of the log: local time, to the second.
func timestamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05")
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

// sandboxOf returns the kind of sandbox that a tool has, as its file says it; empty if it has no program.
func sandboxOf(t events.ToolSpec) string {
	if len(t.Sandbox) == 0 {
		return ""
	}
	if first := t.Sandbox[0]; slices.Contains([]string{"off", "bwrap", "runsc"}, first) {
		return first
	}
	return "strict"
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
		rows[i] = []string{t.Name, t.Pool, t.Effect, t.Risk, sandboxOf(t), Cut(t.Description, DescriptionWidth)}
	}
	return WriteTable(w, []string{"NAME", "POOL", "EFFECT", "RISK", "SANDBOX", "DESCRIPTION"}, rows)
}

// Fit is [Plain] shortened to a number of columns of a terminal.
func Fit(text string, columns int) string {
	columns = max(columns, 1)
	text = Cut(text, columns)
	width, kept := 0, 0
	for i, r := range text {
		if width < columns {
			kept = i // room for the ellipsis
		}
		if width += terminal.Width(r); width > columns && r != '…' {
			return strings.TrimRight(text[:kept], " ") + "…"
		}
	}
	return text
}
