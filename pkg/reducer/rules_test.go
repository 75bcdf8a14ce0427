package reducer_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

var update = flag.Bool("update", false, "write docs/reference/events.md and the golden files anew")

// TestEveryTypeIsComplete names what a type lacks that was added by half.
func TestEveryTypeIsComplete(t *testing.T) {
	for _, typ := range slices.Compact(slices.Sorted(slices.Values(append(events.Types(), reducer.RuledTypes()...)))) {
		for _, column := range reducer.Missing(typ) {
			t.Errorf("event type %s lacks %s", typ, column)
		}
	}
}

// golden compares text with a file, or writes it.
func golden(t *testing.T, file, text, says string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), text, says)
}

// TestRevision: what decides whether an event is legal does not change within a
// revision, since builds of one revision have to agree.
func TestRevision(t *testing.T) {
	sum := sha256.Sum256([]byte(reducer.Facts()))
	require.Equal(t, reducer.Revisions[reducer.Revision-1], hex.EncodeToString(sum[:]),
		"types, versions, origins or legality changed: add this digest to revisions in identity.go")
}

// TestLegality stores an event of every type in every state, with no data, and with the
// data of another event of the type: what is legal there, and what is wrong if it is not.
func TestLegality(t *testing.T) {
	var b strings.Builder
	for _, state := range allStates {
		scene := in(t, state)
		for _, typ := range slices.Sorted(slices.Values(events.Types())) {
			to, legal := oracle(state, typ)
			if !legal {
				continue // see TestEveryIllegalEdgePoisons
			}
			for _, data := range []string{`{}`, `{"mode":"task","message_id":"m","call_id":"a","code":"no_actor","decision":"approved","kind":"interrupted",` +
				`"content":"x","calls":[{"id":"n","name":"beta","arguments":""}],"requests":[{"call_id":"n"}]}`} {
				for _, from := range slices.Compact([]events.State{state, events.Control}) {
					s := *scene
					s.Run = scene.Clone()
					subject, body := s.stored(typ, to, data)
					subject = strings.Replace(subject, "."+string(state)+".", "."+string(from)+".", 1)
					verdict := "legal"
					if err := s.Store(subject, body); err != nil {
						verdict = strings.NewReplacer(s.ID.ID, "RUN").Replace(err.Error())
					}
					fmt.Fprintf(&b, "%s in %s from %s, %d bytes: %s\n", typ, state, from, len(data), verdict)
				}
			}
		}
	}
	golden(t, "testdata/legality.golden", b.String(),
		"what is legal has changed: raise the row's legality and reducer.Revision, then run this test with -update")
}

// TestIdentities: the hashes that runs pin, by revision. Runs of the older ones go on.
func TestIdentities(t *testing.T) {
	own := reducer.DefaultTable().Identities()
	require.Equal(t, []string{
		"b2902885ab6b12917408e9dedcb83cbfdb5a1118bf0b3298d741dafa964b1784",
		"3dd1c101c1c673e47179700868837ffeb36991c03da1e760040feaea99211bcf",
		"d3347d84228a6ba021e588c80fa40fe4c7e318051c64171e156471bb3aeeefd5",
		"d97bbb45aaed19fee95a98ec1b5c8c68bded2ea68c4d8246606f94d68749376e",
		"2006a6ab070bbcf0e6af0d3abc37995e2a6b5280f2c10b9194dc6fab139fc64f",
		"5f20422702c4d3e4aba0fc3ee23d660d086b23cc57da81403517844fd85f2934",
		"0df4c4c087972a0d1b717dad947869d5a16d0153ecf3fba5e8c1cdd0d39cb711",
		"01fb44f27c37b2d3f29ba383ea70937d13a15081aa3294e7e385e21cb06f379b",
	}, own, "no line of this list ever changes: a new revision adds one")
	require.Equal(t, own[len(own)-1], reducer.DefaultTable().Hash())
	m := reducer.NewMachine(reducer.MachineOptions{})
	for _, hash := range append(own, "") {
		_, err := startOf(m, hash)
		require.NoError(t, err, hash)
	}
	older, err := reducer.DefaultTable().At(reducer.Revision - 1)
	require.NoError(t, err)
	require.Equal(t, own[:len(own)-1], older.Identities())
	for table, hash := range map[*reducer.Table]string{reducer.DefaultTable(): "0123", older: own[len(own)-1]} {
		run, err := startOf(reducer.NewMachine(reducer.MachineOptions{Table: table}), hash)
		var foreign *reducer.TableError
		require.ErrorAs(t, err, &foreign)
		require.ErrorContains(t, err, hash[:4])
		require.Nil(t, run.Mem.Control.Poison)
	}
}

// startOf begins a run that pins the hash.
func startOf(m *reducer.Machine, hash string) (*reducertest.Run, error) {
	r := reducertest.NewRun(m)
	p := reducertest.StartOf("x", events.ModeTask)
	p.TableHash = hash
	subject, e, err := m.Draft(r.Mem, r.ID, events.Idle, p, reducer.Stamp{ID: r.NewID(), Source: "moorebus/test/1"})
	if err != nil {
		return r, err
	}
	body, err := m.Codec().Encode(e)
	if err != nil {
		return r, err
	}
	return r, r.Store(subject.String(), body)
}

// TestNewerStartIsLeftAlone: whether the rest of a Start is legal, only a program can
// say that has its table.
func TestNewerStartIsLeftAlone(t *testing.T) {
	s := newScene(t)
	subject, body := s.stored(events.TypeStart, "elsewhere", `{"mode":"dream","table_hash":"0123"}`)
	var foreign *reducer.TableError
	_, err := s.Machine.Apply(s.Mem, subject, body)
	require.ErrorAs(t, err, &foreign)
	require.Zero(t, s.Mem.N)
	poisonBy(t, s.Run, strings.Replace(subject, ".idle.", ".acting.", 1), body) // no table lets a run begin elsewhere
}

// TestNewerVersion: a run of this revision that holds a newer version of a payload is
// left alone; one of a revision whose builds ended it is poisoned, as its log has it. So
// is an application's run, and one that pins no revision.
func TestNewerVersion(t *testing.T) {
	spec := reducer.DefaultTable().Spec()
	spec.Stay = append(spec.Stay, "Own")
	table, err := reducer.NewTable(spec)
	require.NoError(t, err)
	codec, err := events.NewCodec(events.TypeSpec{Type: "Own"})
	require.NoError(t, err)
	m := reducer.NewMachine(reducer.MachineOptions{Table: table, Codec: codec})
	for revision, hash := range append([]string{""}, table.Identities()...) {
		for _, typ := range []events.Type{events.TypeLLMThought, "Own"} {
			run, err := startOf(m, hash)
			require.NoError(t, err)
			s := &scene{Run: run, t: t}
			err = s.Store(s.newer(typ, events.Planning))
			require.ErrorContains(t, err, "version 99 is newer than 1")
			if revision < 3 {
				require.NotNil(t, s.Mem.Control.Poison)
				continue
			}
			var foreign *reducer.TableError
			require.ErrorAs(t, err, &foreign)
			require.Equal(t, uint64(1), s.Mem.N)
			require.Nil(t, s.Mem.Control.Poison)
		}
	}
}

// newer is a record of a newer version of the type.
func (s *scene) newer(typ events.Type, to events.State) (string, []byte) {
	subject, body := s.stored(typ, to, `{}`)
	return subject, []byte(strings.Replace(string(body), string(typ)+"/1", string(typ)+"/99", 1))
}

// TestNewerVersionOutOfPlace: what an envelope says is judged whatever the version of the
// payload is. Else one record would keep a run from ever ending.
func TestNewerVersionOutOfPlace(t *testing.T) {
	for says, c := range map[string]struct {
		state    events.State
		typ      events.Type
		old, now string
	}{
		"n is 7, the run's next is 2":              {events.Planning, events.TypeLLMThought, `"n":2`, `"n":7`},
		"prev does not match":                      {events.Planning, events.TypeLLMThought, `"prev":"`, `"prev":"` + strings.Repeat("0", 64) + `","was":"`},
		"cause is absent":                          {events.Planning, events.TypeLLMThought, `"cause"`, `"was"`},
		"from is acting":                           {events.Planning, events.TypeLLMThought, `"from":"planning"`, `"from":"acting"`},
		"to is acting":                             {events.Planning, events.TypeLLMThought, `"to":"planning"`, `"to":"acting"`},
		"belongs to run 01932c07":                  {events.Planning, events.TypeLLMThought, `"subject":"`, `"subject":"01932c07-89a1-7cde-8f01-23456789abcd","was":"`},
		"not in the transition table":              {events.Planning, events.TypeLLMThought, `LlmThought`, `PageDone`},
		"in state planning may not come from":      {events.Planning, events.TypeLLMThought, "", ""},
		"HandedOff comes from the actor of agents": {events.Acting, events.TypeHandedOff, "", ""},
		"Start in state idle may not come from":    {events.Idle, events.TypeStart, "", ""},
		"Forked in state idle may not come from":   {events.Idle, events.TypeForked, "", ""},
		"n is 3, the run's next is 1":              {events.Idle, events.TypeStart, `"n":1`, `"n":3`},
	} {
		t.Run(says, func(t *testing.T) {
			s := in(t, c.state)
			subject, body := s.newer(c.typ, c.state)
			body = []byte(strings.ReplaceAll(string(body), c.old, c.now))
			if strings.HasSuffix(says, "may not come from") {
				subject = strings.Replace(subject, "."+string(c.state)+".", ".reflecting.", 1)
			}
			n := s.Mem.N
			err := s.Store(subject, body)
			var illegal *reducer.IllegalError
			require.ErrorAs(t, err, &illegal)
			require.ErrorContains(t, err, says)
			require.Equal(t, n+1, s.Mem.N)
			require.NotNil(t, s.Mem.Control.Poison)
		})
	}
	for state, typ := range map[events.State]events.Type{events.Idle: events.TypeStart, events.Acting: events.TypeToolFailure} {
		s := in(t, state)
		to, _ := oracle(state, typ)
		var foreign *reducer.TableError
		require.ErrorAs(t, s.Store(s.newer(typ, to)), &foreign)
		require.Nil(t, s.Mem.Control.Poison)
	}
}

// TestFormsOfARevision: an interrupted reply outside Planning is of revision 3. Most
// builds of revision 2 end a run that holds one, so none is written into their runs. The
// last of them write and read it, with the same hash, so logs that hold one are read.
func TestFormsOfARevision(t *testing.T) {
	interrupted := &events.LLMAttemptFailed{Kind: codes.KindInterrupted, MessageID: "m-1", Content: "It i"}
	m := reducer.NewMachine(reducer.MachineOptions{})
	older, err := m.Table().At(2)
	require.NoError(t, err)
	hash := older.Hash()

	run, err := startOf(m, hash)
	require.NoError(t, err)
	s := (&scene{Run: run, t: t}).do(interrupted, single("a", "alpha"))
	interrupted = &events.LLMAttemptFailed{Kind: codes.KindInterrupted, MessageID: "m-2", Content: "It i"}
	_, _, _, err = s.Draft(events.Planning, interrupted)
	require.ErrorIs(t, err, reducer.ErrRevision)
	require.ErrorContains(t, err, "LlmAttemptFailed in this form is of revision 3, and its run of revision 2")

	stored := in(t, events.Acting)
	subject, _, body, err := stored.Draft(events.Planning, interrupted)
	require.NoError(t, err, "in a run of this revision")
	require.NoError(t, stored.Store(subject.String(), body))
	require.NoError(t, s.Clone().Store(s.forged(subject, body)), "in a log of revision 2")

	past, err := startOf(reducer.NewMachine(reducer.MachineOptions{Table: older}), hash)
	require.NoError(t, err)
	p := (&scene{Run: past, t: t}).do(single("a", "alpha"))
	require.ErrorContains(t, p.Store(p.forged(subject, body)), "is of revision 3")
}

// TestModelsInARunOfRevision3: its builds cannot read models that are more than a name, so
// no agent that has them comes into the run or into a fork of it.
func TestModelsInARunOfRevision3(t *testing.T) {
	m := reducer.NewMachine(reducer.MachineOptions{})
	older, err := m.Table().At(3)
	require.NoError(t, err)
	for hash, known := range map[string]bool{older.Hash(): false, m.Table().Hash(): true} {
		run, err := startOf(m, hash)
		require.NoError(t, err)
		agent := events.Agent{Name: "other", Models: map[string]events.Models{"default": {{Provider: "local", Model: "llama"}}}}
		_, forking := run.Fork(1, events.Forked{Agent: &agent, AgentHash: "h"})
		call := single("a", "ask")
		s := (&scene{Run: run, t: t}).do(call)
		_, _, _, handing := s.Draft(events.Acting, &events.HandedOff{Agent: agent, AgentHash: "h", CallID: "a"})
		for typ, err := range map[events.Type]error{events.TypeForked: forking, events.TypeHandedOff: handing} {
			require.Equal(t, !known, errors.Is(err, reducer.ErrRevision), "%s: %v", typ, err)
			if !known {
				require.ErrorContains(t, err, string(typ)+" in this form is of revision 4, and its run of revision 3")
			}
		}
	}
}

// forged is a record of another run as one of this run.
func (s *scene) forged(subject events.Subject, body []byte) (string, []byte) {
	e, err := s.Machine.Codec().Decode(body)
	require.NoError(s.t, err)
	e.Run, e.N, e.Prev, e.Cause = s.ID.ID, s.Mem.N+1, s.Mem.Control.Head, s.Mem.Control.LastID
	body, err = s.Machine.Codec().Encode(e)
	require.NoError(s.t, err)
	subject.Run = s.ID
	return subject.String(), body
}

// TestEventsReference: docs/reference/events.md is written from the rows.
func TestEventsReference(t *testing.T) {
	const file, begin, end = "../../docs/reference/events.md", "<!-- generated: make golden -->\n", "<!-- end -->\n"
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	head, rest, found := strings.Cut(string(text), begin)
	_, tail, ended := strings.Cut(rest, end)
	require.True(t, found && ended, "docs/reference/events.md lacks its marks")
	golden(t, file, head+begin+reference()+end+tail, "run this test with -update")
}

func reference() string {
	var b strings.Builder
	b.WriteString("| event | what happened | leads | published by |\n|---|---|---|---|\n")
	spec := reducer.DefaultTable().Spec()
	for _, typ := range events.Types() {
		var leads []string
		for _, row := range spec.Rows {
			if row.Event == typ && row.From == "" {
				leads = append(leads, "any state to `"+string(row.To)+"`")
			} else if row.Event == typ {
				leads = append(leads, fmt.Sprintf("`%s` to `%s`", row.From, row.To))
			}
		}
		if slices.Contains(spec.Stay, typ) {
			leads = append(leads, "else stays")
			if len(leads) == 1 {
				leads[0] = "stays"
			}
		}
		if typ == events.TypeForked {
			leads = []string{"`idle` to its parent's state"}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", typ, events.Sentence(typ), strings.Join(leads, ", "), reducer.Publishers(typ))
	}
	b.WriteString("\nThe hashes that a `Start` pins as `table_hash` for the built-in table, by revision:\n\n")
	for i, hash := range reducer.DefaultTable().Identities() {
		fmt.Fprintf(&b, "%d. `%s`\n", i+1, hash)
	}
	return b.String()
}
