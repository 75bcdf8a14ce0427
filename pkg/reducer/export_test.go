package reducer

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

// Origins are the `<from>` that an event may have in a run as it stands.
func Origins(t *Table, mem *Memory, p events.Payload) []events.State {
	c, ok := t.cell(mem.State, events.TypeOf(p))
	if !ok {
		c.from = ruleFor(events.TypeOf(p)).from
	}
	if now := ruleFor(events.TypeOf(p)).fromNow; now != nil {
		c.from = now(mem, p)
	}
	return t.origins(c.from, mem.State)
}

// Missing names the columns that a type lacks in its rows here and in package events.
func Missing(typ events.Type) (columns []string) {
	lacks := func(bad bool, column string) {
		if bad {
			columns = append(columns, column)
		}
	}
	lacks(!slices.Contains(events.Types(), typ), "a row in package events")
	lacks(events.Since(typ) < 1 || events.Since(typ) > Revision, "since, in package events")
	sentence := events.Sentence(typ)
	lacks(sentence == "" || sentence[len(sentence)-1] != '.', "a sentence, in package events")
	r := ruleOf[typ]
	if r == nil {
		return append(columns, "a row in package reducer")
	}
	lacks(len(r.moves) == 0 && !r.stays && typ != events.TypeForked, "moves or stays")
	lacks(r.from == 0, "from")
	lacks((r.ways == nil) != (r.route == nil), "ways or route, one of which has no use without the other")
	lacks(r.check == nil, "check")
	lacks(r.legality < 1, "legality")
	lacks(r.fold == nil, "fold")
	lacks(r.trace == nil, "trace")
	return columns
}

// RuledTypes are the types that have a row in this package.
func RuledTypes() []events.Type {
	types := make([]events.Type, len(rules))
	for i := range rules {
		types[i] = rules[i].typ
	}
	return types
}

// Publishers are those that may publish the type in some run, in words.
func Publishers(typ events.Type) string {
	r, parts := ruleOf[typ], []string{}
	for bit, word := range map[origin]string{own: "1the state's worker", planning: "2the planner", everyState: "3any worker", control: "4the gateway"} {
		if r.from&bit != 0 {
			parts = append(parts, word)
		}
	}
	slices.Sort(parts)
	for i := range parts {
		parts[i] = parts[i][1:]
	}
	for _, s := range r.ownIn {
		parts = append(parts, "in "+s.Name()+" its worker too")
	}
	return strings.Join(parts, ", ")
}

// Facts is the text whose digest stands in the revisions.
var (
	Facts, Revisions = facts, revisions
	PagedNote        = pagedNote
	Forks            = (*Table).forks
)

const (
	MemoryVersion   = memoryVersion
	InterruptedNote = interruptedNote
)

// Identities returns the hashes of the runs that a program with this table can read, by
// the revision of the builds that start such runs. The last one is [Table.Hash].
func (t *Table) Identities() []string {
	all := make([]string, t.revision)
	for r := range all {
		all[r] = t.identity(r + 1)
	}
	return all
}

// Every event has a line in the trace that says more than its type, and no more than
// fits.
func TestEveryEventIsDescribed(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 2*traceTextLimit)
	data := fmt.Sprintf(`{"task":%[1]q,"content":%[1]q,"message":%[1]q,"summary":%[1]q,"observation":%[1]q,"reason":%[1]q,"value":%[1]q,"arguments":%[1]q,
		"run":"r","key":"mine","at":3,"code":"c","kind":"k","call_id":"c1","decision":"modified","by":"Ann","tags":["home"],"agent":{"name":"writer"},"increment":4,
		"calls":[{"id":"c1","name":"search","arguments":%[1]q}],"call_ids":["c1"],"results":[{"id":"c1","code":"c","observation":%[1]q}]}`, long)
	const id, envelope = "01932c07-0000-7000-8000-000000000001", `{"specversion":"1.0","id":%[1]q,"type":%[2]q,"source":"test","subject":%[1]q,` +
		`"time":"2026-01-02T03:04:05Z","datacontenttype":"application/json","dataschema":"moorebus/%[2]s/1","n":1,"from":"idle","to":"idle","step":0,"data":%[3]s}`
	for _, typ := range events.Types() {
		e, err := new(events.Codec).Decode(fmt.Appendf(nil, envelope, id, typ, data))
		require.NoError(t, err, typ)
		text := ruleFor(typ).trace(e.Data)
		require.NotEmpty(t, strings.Trim(text, " :,"), typ)
		require.LessOrEqual(t, utf8.RuneCountInString(text), traceTextLimit+1, typ)
	}
	require.Equal(t, `{"x":1}`, customRule.trace(&events.Custom{Name: "Mine", Data: []byte(`{"x":1}`)}))
}

// Previous is the revision of the builds of the release before this one.
const Previous = previous
