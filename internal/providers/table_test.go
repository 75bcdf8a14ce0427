package providers

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTable: every entry has keys and values that a provider file may have, too, and says
// where it is from.
func TestTable(t *testing.T) {
	day := regexp.MustCompile(`^20\d\d-\d\d-\d\d$`)
	sourced := func(f fact, about string) {
		require.Regexp(t, `^https://`, f.Source, about)
		require.Regexp(t, day, f.Date, about)
	}
	require.NoError(t, CheckCapabilities(table().Unknown))
	for kind, set := range table().UnknownKinds {
		require.NoError(t, CheckCapabilities(set), kind)
	}
	names := map[string]bool{}
	for _, r := range table().Rows {
		require.False(t, names[r.Name], r.Name)
		names[r.Name] = true
		require.NoError(t, CheckCapabilities(r.Set), r.Name)
		require.NotEmpty(t, r.For)
		sourced(r.fact, r.Name)
		for _, m := range r.Models {
			require.NoError(t, CheckCapabilities(m.Set), "%s %s", r.Name, m.For)
			require.False(t, m.Match.MatchString(""), "%s %s", r.Name, m.For)
			require.NotEmpty(t, m.For)
			sourced(m.fact, r.Name+" "+m.For)
		}
		for _, kind := range r.Kinds {
			host, err := HostOf(kind, r.Name, "", nil)
			require.NoError(t, err)
			c := host.Capabilities("any")
			require.Equal(t, c.ReasoningField == None, c.ReasoningBack == BackNever, "%s: one without the other", r.Name)
			if kind != Anthropic { // whose efforts are sent in a way of their own
				require.Equal(t, c.EffortField == None, len(c.Efforts) == 0, "%s: one without the other", r.Name)
			}
		}
	}
}

// TestModelsPage compares the tables of docs/models.md, and holds its list of keys to the
// struct.
func TestModelsPage(t *testing.T) {
	const file, begin, end = "../../docs/models.md", "<!-- written by go test ./internal/providers -update -->\n", "<!-- end of the tables -->"
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	head, rest, found := strings.Cut(string(text), begin)
	_, tail, foundEnd := strings.Cut(rest, end)
	require.True(t, found && foundEnd, "the marks are missing")
	want := head + begin + "\n" + servers() + "\n" + differences() + "\n" + end + tail
	if flag.Lookup("update").Value.String() == "true" {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o600))
	} else {
		require.Equal(t, want, string(text), "run go test ./internal/providers -update")
	}
	fields := reflect.TypeFor[Capabilities]()
	for i := range fields.NumField() {
		key := fields.Field(i).Tag.Get("json")
		if key == "-" {
			continue
		}
		require.Contains(t, tail, "| `"+key+"` |", "docs/models.md does not explain the key")
		_, entry, _ := strings.Cut(tail, "| `"+key+"` |")
		entry, _, _ = strings.Cut(entry, "\n")
		for _, value := range choices[key] {
			if value != "" && key != "efforts" {
				require.Contains(t, entry, "`"+value+"`", "docs/models.md does not name a value of "+key)
			}
		}
	}
}

// servers is the table of rows, with what counts for a model that no rule matches.
func servers() string {
	var b strings.Builder
	b.WriteString("| row | server | kinds | address | reasoning goes back | effort | structured answers, beside tools | images, files | source |\n|---|---|---|---|---|---|---|---|---|\n")
	line := func(name, of, kinds, at string, c Capabilities, source string) {
		back := "–"
		if c.ReasoningBack != BackNever {
			back = fmt.Sprintf("`%s`, %s", c.ReasoningField, c.ReasoningBack)
		}
		effort := "–"
		if len(c.Efforts) > 0 {
			effort = fmt.Sprintf("`%s`: %s", c.EffortField, strings.Join(c.Efforts, ", "))
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s, %s | %s, %s | %s |\n", name, of, kinds, at, back, effort, c.OutputSchema, c.OutputWithTools, c.Images, c.Files, source)
	}
	for _, r := range table().Rows {
		at := append([]string{}, r.Hosts...)
		for i, host := range at {
			switch {
			case strings.HasPrefix(host, "*:"):
				at[i] = "any host" + host[1:]
			case strings.HasPrefix(host, ":"):
				at[i] = "loopback" + host
			}
		}
		if r.Names.Regexp != nil {
			at = append(at, "or the model's name")
		}
		if len(at) == 0 {
			at = []string{"only by `like`"}
		}
		host, _ := HostOf(r.Kinds[0], r.Name, "", nil) // TestTable looks at the error
		line("`"+r.Name+"`", r.For, strings.Replace(strings.Join(r.Kinds, ", "), "openai", "openai, responses", 1), strings.Join(at, ", "), host.Capabilities("any"), link(r.fact))
	}
	for _, kind := range []string{"openai", "responses", "anthropic"} {
		line("–", "any other", kind, "", Host{kind: kind}.Capabilities("any"), "")
	}
	return b.String()
}

// differences is the table of what differs for some models.
func differences() string {
	var b strings.Builder
	b.WriteString("| row | models | differs | source |\n|---|---|---|---|\n")
	for _, r := range table().Rows {
		for _, m := range r.Models {
			var keys []string
			set, _ := ordered(m.Set)
			for _, k := range set {
				keys = append(keys, "`"+k[0]+": "+k[1]+"`")
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", r.Name, m.For, strings.Join(keys, ", "), link(m.fact))
		}
	}
	return b.String()
}

// ordered returns an object's keys and values as text, in order.
func ordered(object json.RawMessage) (all [][2]string, err error) {
	dec := json.NewDecoder(bytes.NewReader(object))
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		all = append(all, [2]string{fmt.Sprint(key), strings.ReplaceAll(string(value), `"`, "")})
	}
	return all, nil
}

func link(f fact) string { return fmt.Sprintf("[%s](%s)", f.Date, f.Source) }
