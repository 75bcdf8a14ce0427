package reducer_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// specRows is the table of SPEC section 2, with the wire's names of states and
// one line a row; `*` stands for every state that is not terminal.
const specRows = `
idle Start planning
planning LlmToolCall acting
planning LlmParallelToolCalls parallel_acting
planning LlmFinalAnswer done
planning LlmMessageComplete waiting_for_user
planning UserMessage planning
planning LlmThought planning
planning MaxSteps error
planning LowConfidence reflecting
planning NeedsReflection reflecting
planning AnswerTooShort planning
planning ToolBlacklisted planning
planning ReplyInvalid planning
planning HumanApprovalRequired waiting_for_human
waiting_for_human HumanApproved acting
waiting_for_human HumanModified acting
waiting_for_human HumanApprovedParallel parallel_acting
waiting_for_human HumanRejected observing
waiting_for_human ApprovalExpired observing
waiting_for_user UserMessage planning
waiting_for_user Closed done
acting ToolSuccess observing
acting ToolFailure observing
parallel_acting ToolSuccess observing
parallel_acting ToolFailure observing
observing Continue planning
observing NeedsReflection reflecting
observing NeedsPaging paging
reflecting ReflectDone planning
paging PageDone planning
acting HumanApprovalRequired waiting_for_human
* FatalError error
* BudgetExceeded error
* Cancelled cancelled`

// specStay are the events that leave the state as it is.
const specStay = `UserMessage LlmAttemptFailed ToolCallDispatched ToolCallStarted ToolCallResult HumanDecision
	ContextWindowExpanded ToolCallsAddedToContext WorkingMemoryAdded WorkingMemoryRemoved StorageSaved StorageLoaded
	Paused Resumed BudgetRaised HandedOff CustomMemorySet Admitted`

func TestTheTableIsTheSpecifications(t *testing.T) {
	table := reducer.DefaultTable()
	var rows []string
	for _, row := range table.Spec().Rows {
		from := string(row.From)
		if from == "" {
			from = "*"
		}
		rows = append(rows, from+" "+string(row.Event)+" "+string(row.To))
	}
	require.ElementsMatch(t, strings.Split(strings.TrimSpace(specRows), "\n"), rows)
	var stay []string
	for _, typ := range table.Spec().Stay {
		stay = append(stay, string(typ))
	}
	require.ElementsMatch(t, strings.Fields(specStay), stay)
	require.ElementsMatch(t, allStates, table.States())
	require.Equal(t, events.Idle, table.Initial())
	for _, s := range allStates {
		require.Equal(t, slices.Contains(terminalStates, s), table.Terminal(s), s)
	}
}

// oracle says what an event leads to, read off the rows above.
func oracle(from events.State, typ events.Type) (events.State, bool) {
	if slices.Contains(terminalStates, from) {
		return "", false
	}
	for line := range strings.SplitSeq(strings.TrimSpace(specRows), "\n") {
		f := strings.Fields(line)
		if (f[0] == "*" || f[0] == string(from)) && f[1] == string(typ) {
			return events.State(f[2]), true
		}
	}
	// Nothing but Start or an end can be a run's first event.
	if slices.Contains(strings.Fields(specStay), string(typ)) && from != events.Idle {
		return from, true
	}
	return "", false
}

func TestNextOfEveryStateAndEvent(t *testing.T) {
	table := reducer.DefaultTable()
	for _, from := range allStates {
		for _, typ := range append(events.Types(), "Unheard") {
			want, legal := oracle(from, typ)
			got, ok := table.Next(from, typ)
			require.Equal(t, legal, ok, "%s in %s", typ, from)
			require.Equal(t, want, got, "%s in %s", typ, from)
		}
	}
}

func TestTableValidation(t *testing.T) {
	row := func(from, event, to string) reducer.Row {
		return reducer.Row{From: events.State(from), Event: events.Type(event), To: events.State(to)}
	}
	spec := func(change func(*reducer.TableSpec)) reducer.TableSpec {
		s := reducer.DefaultTable().Spec()
		change(&s)
		return s
	}
	add := func(rows ...reducer.Row) reducer.TableSpec {
		return spec(func(s *reducer.TableSpec) { s.Rows = append(s.Rows, rows...) })
	}
	for says, s := range map[string]reducer.TableSpec{
		"stands there twice":             add(row("planning", "LlmToolCall", "observing")),
		"stands there twice, to acting":  add(row("planning", "LlmToolCall", "acting")),
		"nothing leads there":            add(row("lonely", "Go", "planning")),
		"no row leads out of it":         add(row("planning", "Go", "trap")),
		"no row leads out of it; add":    add(row("planning", "Go", "trap"), row("trap", "Again", "trap")),
		"done is terminal":               add(row("done", "Go", "planning")),
		"are no states":                  add(row("planning", "Go", "none")),
		"are no states ":                 add(row("control", "Go", "planning")),
		"states are":                     add(row("planning", "Go", "Not_Snake")),
		"the event has a name":           add(row("planning", "", "acting")),
		"initial state":                  spec(func(s *reducer.TableSpec) { s.Initial = "" }),
		"initial state \"control\"":      spec(func(s *reducer.TableSpec) { s.Initial = events.Control }),
		"nothing leads there from idle":  spec(func(s *reducer.TableSpec) { s.Terminal = append(s.Terminal, "limbo") }),
		"idle is terminal":               spec(func(s *reducer.TableSpec) { s.Terminal = append(s.Terminal, events.Idle) }),
		"state error: no row leads out ": spec(func(s *reducer.TableSpec) { s.Terminal = []events.State{events.Done, events.Cancelled} }),
	} {
		_, err := reducer.NewTable(s)
		require.Error(t, err, says)
		require.ErrorContains(t, err, strings.TrimSpace(says))
	}
}

// A state or an event that stands twice in a spec is one, for the hash too, which runs pin.
func TestHashOfASpecWithRepeats(t *testing.T) {
	spec := reducer.DefaultTable().Spec()
	spec.Terminal, spec.Stay = append(spec.Terminal, spec.Terminal...), append(spec.Stay, spec.Stay...)
	table, err := reducer.NewTable(spec)
	require.NoError(t, err)
	require.Equal(t, reducer.DefaultTable().Identities(), table.Identities())
}

func TestCustomStatesAndTerminals(t *testing.T) {
	spec := reducer.DefaultTable().Spec()
	spec.Terminal = append(spec.Terminal, "archived")
	spec.Rows = append(spec.Rows,
		reducer.Row{From: events.Planning, Event: "ReviewNeeded", To: "reviewing"},
		reducer.Row{From: "reviewing", Event: "Reviewed", To: events.Planning},
		reducer.Row{From: "reviewing", Event: "Archived", To: "archived"})
	table, err := reducer.NewTable(spec)
	require.NoError(t, err)
	require.True(t, table.Terminal("archived"))
	to, ok := table.Next("reviewing", events.TypeCancelled)
	require.True(t, ok)
	require.Equal(t, events.Cancelled, to, "a custom state can be left by what leaves every state")
	to, ok = table.Next("reviewing", events.TypePaused)
	require.True(t, ok)
	require.Equal(t, events.State("reviewing"), to)
	_, ok = table.Next("archived", events.TypeCancelled)
	require.False(t, ok)
	require.NotEqual(t, reducer.DefaultTable().Hash(), table.Hash())
}

func TestHashDoesNotDependOnOrder(t *testing.T) {
	want := reducer.DefaultTable().Hash()
	require.Len(t, want, 64)
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		spec := reducer.DefaultTable().Spec()
		random.Shuffle(len(spec.Rows), func(i, j int) { spec.Rows[i], spec.Rows[j] = spec.Rows[j], spec.Rows[i] })
		random.Shuffle(len(spec.Stay), func(i, j int) { spec.Stay[i], spec.Stay[j] = spec.Stay[j], spec.Stay[i] })
		slices.Reverse(spec.Terminal)
		table, err := reducer.NewTable(spec)
		require.NoError(t, err)
		require.Equal(t, want, table.Hash())
	}
	spec := reducer.DefaultTable().Spec()
	spec.Stay = spec.Stay[1:]
	table, err := reducer.NewTable(spec)
	require.NoError(t, err)
	require.NotEqual(t, want, table.Hash())
}

func TestATableCannotBeChangedFromOutside(t *testing.T) {
	spec := reducer.DefaultTable().Spec()
	table, err := reducer.NewTable(spec)
	require.NoError(t, err)
	for i := range spec.Rows {
		spec.Rows[i].To = events.Done
	}
	table.Spec().Rows[0].To, table.States()[0], table.Spec().Stay[0] = "x", "x", "x"
	require.Equal(t, reducer.DefaultTable(), table)
}

// folding is the built-in machine with folds of an application's own.
func folding(folds map[events.Type]reducer.Fold) *reducer.Machine {
	return reducer.NewMachine(reducer.MachineOptions{Folds: folds})
}

// A fold that panics poisons its run at that event, and takes nobody with it.
func TestFoldOfOnesOwnPanics(t *testing.T) {
	s := &scene{Run: reducertest.NewRun(folding(map[events.Type]reducer.Fold{
		events.TypeLLMToolCall: func(mem *reducer.Memory, _ *events.Event) {
			mem.State, mem.RunID = "elsewhere", "another"
			panic("no such key")
		},
	})), t: t}
	s.do(reducertest.StartOf("x", events.ModeTask))
	_, _, err := s.Append(events.Planning, single("a", "alpha"))
	var illegal *reducer.IllegalError
	require.ErrorAs(t, err, &illegal)
	require.Equal(t, uint64(2), illegal.N)
	require.Contains(t, illegal.Reason, "fold of LlmToolCall panicked: no such key")
	require.Equal(t, uint64(2), s.Mem.N)
	require.Equal(t, events.Planning, s.Mem.State)
	require.NotEqual(t, "another", s.Mem.RunID)
	wants := s.Effects()
	require.Len(t, wants, 1)
	require.Equal(t, effects.KindEnd, wants[0].Kind)
	s.do(effects.End(s.Mem))
	require.Equal(t, events.Errored, s.Mem.State)
	require.Equal(t, codes.Poison, s.Mem.Error.Code)
}

// Not even a fold of the run's end can keep the run from ending.
func TestFoldOfTheEndPanics(t *testing.T) {
	broken := func(*reducer.Memory, *events.Event) { panic("no end") }
	s := &scene{Run: reducertest.NewRun(folding(map[events.Type]reducer.Fold{
		events.TypeFatalError: broken, events.TypeCancelled: broken,
	})), t: t}
	s.do(reducertest.StartOf("x", events.ModeTask))
	_, _, err := s.Append(events.Control, &events.CancelledRun{})
	require.Error(t, err)
	require.Equal(t, events.Planning, s.Mem.State)
	s.do(effects.End(s.Mem))
	require.Equal(t, events.Errored, s.Mem.State)
}

func TestCustomMemory(t *testing.T) {
	s := &scene{Run: reducertest.NewRun(folding(map[events.Type]reducer.Fold{
		events.TypeLLMToolCall: func(mem *reducer.Memory, _ *events.Event) {
			count := 0
			mem.Kept("calls", &count)
			mem.Keep("calls", count+1)
			mem.Note("that was a call")
		},
	})), t: t}
	s.do(reducertest.StartOf("x", events.ModeTask), single("a", "alpha"), success("a", "1"), &events.Continue{}, single("b", "alpha"))
	var count int
	require.True(t, s.Mem.Kept("calls", &count))
	require.Equal(t, 2, count)
	require.Equal(t, json.RawMessage("2"), s.Mem.Custom["calls"])
	require.False(t, s.Mem.Kept("nothing", &count))
	text := ""
	require.False(t, s.Mem.Kept("calls", &text), "what does not fit is not read")
	s.do(success("b", "2"))
	view := reducer.View(nil, s.Mem)
	found := 0
	for _, m := range view {
		if m.Role == "user" && m.Content == "that was a call" {
			found++
		}
	}
	require.Equal(t, 2, found)
	require.Panics(t, func() { s.Mem.Keep("bad", func() {}) })
	require.Equal(t, reducertest.Canonical(s.Fold()), reducertest.Canonical(s.Mem))
}

// shapes are the memory's shapes by version. A version that was released is not
// changed: a new shape gets a new one.
var shapes = map[int]string{
	1: "49137347ca788d53",
	2: "b0e2836b1d906c59",
	3: "a0f8b5b7b6c99440",
	4: "4eed3725a5ef942d",
	5: "f25471ed1b8ef75a",
	6: "f9eb71993e689f44",
	7: "7cdcac4aae20b04b",
	8: "77d4aa377817794e",
}

// shapeOf describes a type as JSON sees it.
func shapeOf(t reflect.Type, seen map[reflect.Type]bool) string {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return t.Kind().String() + " " + shapeOf(t.Elem(), seen)
	case reflect.Map:
		return "map " + t.Key().Kind().String() + " " + shapeOf(t.Elem(), seen)
	case reflect.Struct:
		if seen[t] || t.Implements(reflect.TypeFor[json.Marshaler]()) {
			return t.String()
		}
		seen[t] = true
		var b strings.Builder
		for i := range t.NumField() {
			f := t.Field(i)
			if !f.IsExported() && !f.Anonymous {
				continue
			}
			fmt.Fprintf(&b, "%s %s; ", f.Tag.Get("json"), shapeOf(f.Type, seen))
		}
		return "{" + b.String() + "}"
	}
	return t.Kind().String()
}

func TestMemoryVersion(t *testing.T) {
	sum := sha256.Sum256([]byte(shapeOf(reflect.TypeFor[reducer.Memory](), map[reflect.Type]bool{})))
	require.Equal(t, shapes[reducer.MemoryVersion], hex.EncodeToString(sum[:8]),
		"the memory's shape changed: raise MemoryVersion, and note the shape here")
}

func TestFoldName(t *testing.T) {
	plain := reducer.NewMachine(reducer.MachineOptions{}).FoldName()
	require.Equal(t, fmt.Sprintf("%d/%s", reducer.MemoryVersion, reducer.DefaultTable().Hash()), plain)
	require.Equal(t, plain, reducer.NewMachine(reducer.MachineOptions{Table: reducer.DefaultTable()}).FoldName())
	m, base := reducer.NewMachine(reducer.MachineOptions{}), fmt.Sprint(reducer.MemoryVersion, "/")
	for _, hash := range m.Table().Identities() {
		require.True(t, m.AcceptsFold(base+hash))
		require.False(t, reducer.NewMachine(reducer.MachineOptions{Codec: new(events.Codec)}).AcceptsFold(base+hash))
		require.False(t, m.AcceptsFold("1/"+hash), "a memory of another shape")
	}
	require.False(t, m.AcceptsFold(base))
	require.False(t, m.AcceptsFold(base+"0123"))
	fold := func(*reducer.Memory, *events.Event) {}
	require.Empty(t, reducer.NewMachine(reducer.MachineOptions{Folds: map[events.Type]reducer.Fold{events.TypeStart: fold}}).FoldName())
	require.Empty(t, reducer.NewMachine(reducer.MachineOptions{Codec: new(events.Codec)}).FoldName())
}
