package reducer

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
)

// Revision counts the changes of what builds of Moorebus can read: a new event type, a new
// version of a payload, a new rule about what is legal. A run pins the revision that it was
// started with, through the hash in its Start, and holds nothing that a later revision
// brought. A line more in revisions is a new revision.
const Revision = len(revisions)

// revisions has, for each [Revision] from 1, the digest of what its builds know in addition to
// the rows of their tables: who may publish each type, in which states it can be legal, the
// version of its payload and that of its legality. Builds of revisions 1 and 2 identified
// themselves by their rows alone. A line never changes; a change of what it stands for is a
// new revision with its own line.
var revisions = [...]string{
	"",
	"",
	"b1d23ad04a4366a676a53adf661564044bc4107a2fbeab4eaffe9d686fb832f9",
	"89b9f86281e0b4f2c9a7eaaa0ef984c11cdad768fce04a221f3dcc520576c15d",
	"9042b2ed35351a647e913587c740588593b8df7dad7c32fedc5568222df3369e",
	"99cda426023a16de91fed3548c5c3d49cce5638407df9cc11b2a9feb9cf555b5",
	"45449d47f64dbd78919e180d27f2334b4a8580fdc7a2e703ab247f96aab23e9e",
	"d3a8a8b0705acc6bcb34eeee6ca7a87655cdfaffd72ddae772b42e465ce6c0ee",
}

// rowsSince has the rows of the built-in table that are younger than their types, with the
// revision that brought each.
var rowsSince = map[Row]int{
	{From: events.Planning, Event: events.TypeNeedsReflection, To: events.Reflecting}: 4,
}

// What the revisions before the third one leave open: builds of revision 2 wrote what
// they knew into any run, and what revision 3 counts as its own stands in runs of
// revision 2. From the third one on the revision of a run says what it can hold.
const (
	anyoneWrites  = 2
	anyoneReads   = 3
	tellsVersions = 3
)

// lossesInARow is the revision from which on only workers lost in a row end a run's
// attempts. An older build gives the run's deliveries back, and nobody can tell such a
// delivery from one whose worker died. A run that pins no revision is an old one.
const lossesInARow = 3

// compactsRequests is the revision from which on a request that is too long narrows the
// context window.
const compactsRequests = 4

// carriesWakes is the revision from which on an event that moves a run and wakes nobody leaves the
// run with the last delivery to Planning, see [Memory.carry].
const carriesWakes = 8

// previous is the revision of the builds that the release before this one has. A run that
// needs nothing newer pins it, so builds of both releases can work on it.
const previous = 6

// facts is the text whose digest stands in revisions.
func facts() string {
	lines := make([]string, 0, len(rules))
	for i := range rules {
		r := &rules[i]
		lines = append(lines, fmt.Sprintf("%s v%d legality %d from %b own in %v in %v agents %t\n",
			r.typ, events.Version(r.typ), r.legality, r.from, r.ownIn, r.in, r.agents))
	}
	slices.Sort(lines)
	return strings.Join(lines, "") + "moves that wake nobody stay with the delivery to planning\n"
}

// at returns the table's spec as builds of a revision had it: without the types and rows
// that came later.
func (spec TableSpec) at(revision int) TableSpec {
	spec.Rows = slices.DeleteFunc(slices.Clone(spec.Rows), func(r Row) bool { return max(events.Since(r.Event), rowsSince[r]) > revision })
	spec.Stay = slices.DeleteFunc(slices.Clone(spec.Stay), func(typ events.Type) bool { return events.Since(typ) > revision })
	return spec
}

// identity is the sha256 of all by which a build of that revision decides what is legal
// in a run of the table.
func (t *Table) identity(revision int) string {
	spec := t.spec.at(revision)
	var b strings.Builder
	fmt.Fprintf(&b, "initial %s\n", spec.Initial)
	for _, s := range spec.Terminal {
		fmt.Fprintf(&b, "terminal %s\n", s)
	}
	for _, row := range spec.Rows {
		fmt.Fprintf(&b, "%s %s %s\n", row.From, row.Event, row.To)
	}
	for _, typ := range spec.Stay {
		fmt.Fprintf(&b, "stay %s\n", typ)
	}
	if facts := revisions[revision-1]; facts != "" {
		fmt.Fprintf(&b, "facts %s\n", facts)
	}
	sum := sha256.Sum256([]byte(b.String()))
	return hex.EncodeToString(sum[:])
}

func (t *Table) identify() {
	t.revisions = make(map[string]int, t.revision)
	for r := t.revision; r > 0; r-- {
		// Where nothing of the table's is younger, two revisions have one hash, and the
		// run may be of the older one.
		t.revisions[t.identity(r)] = r
	}
	t.hash = t.identity(t.revision)
	t.older = t.identity(min(previous, t.revision))
}

// Pins returns the hash that a Start is to pin: that of the release before this one, if
// that can read the Start, so that the roles of an installation can be replaced in any
// order; else the table's own. The run is then limited to what that release knows.
func (t *Table) Pins(p *events.Start) string {
	if startSince(p) <= previous {
		return t.older
	}
	return t.hash
}

// CarriesWakes reports whether a worker that goes on with the run by itself may append events that
// wake nobody: all builds that can read the run know who is responsible for it then.
func (t *Table) CarriesWakes(mem *Memory) bool {
	return t.revisions[mem.Control.TableHash] >= carriesWakes
}

// Hash identifies what a program with this table can read: the table's rows, who may
// publish each event, what is legal, and the versions of the payloads. Equal tables of
// one [Revision] have equal hashes, whatever order their rows were given in. See also
// [Table.Pins].
func (t *Table) Hash() string { return t.hash }

// At returns the table as builds of an earlier revision had it, from 1. They know
// nothing that came later, and neither does a [Machine] with that table.
func (t *Table) At(revision int) (*Table, error) { return newTable(t.spec.at(revision), revision) }

// knows reports whether the table can read a run that pins the hash. A run that pins none
// counts as one of this table.
func (t *Table) knows(hash string) bool { return hash == "" || t.revisions[hash] > 0 }

func (t *Table) revisionOf(mem *Memory) int {
	if r := t.revisions[mem.Control.TableHash]; r > 0 {
		return r
	}
	return t.revision
}

// needs is the revision that brought the event in this form.
func (r *rule) needs(mem *Memory, e *events.Event) int {
	need := max(events.Since(r.typ), rowsSince[Row{From: e.From, Event: r.typ, To: e.To}])
	if r.form != nil {
		need = max(need, r.form(mem, e))
	}
	return need
}

// checkRevision refuses an event that builds of the run's own revision cannot read. All
// builds must agree about what is legal in the run.
func (t *Table) checkRevision(mem *Memory, r *rule, e *events.Event) error {
	own := t.revisionOf(mem)
	if p, ok := e.Data.(*events.Start); ok && t.revisions[p.TableHash] > 0 {
		own = t.revisions[p.TableHash] // it says itself of what revision the run is
	}
	if need := r.needs(mem, e); need > min(max(own, anyoneReads), t.revision) {
		return fmt.Errorf("is of revision %d, and its run of revision %d", need, own)
	}
	return nil
}

// ErrRevision says that an event was not drafted, because builds of the run's own revision may
// be at work on the same bus and could not read it.
var ErrRevision = errors.New("whose builds cannot read it")

// checkWrites refuses to write what the run's own revision does not know.
func (t *Table) checkWrites(mem *Memory, r *rule, e *events.Event) error {
	if e.Type() == events.TypeStart {
		return nil // it says itself of what revision the run is
	}
	if parent := mem.inherited(); parent != nil {
		mem = parent // a fork is of its parent's revision
	}
	if need, run := r.needs(mem, e), t.revisionOf(mem); need > max(run, anyoneWrites) {
		return fmt.Errorf("%s in this form is of revision %d, and its run of revision %d, %w", e.Type(), need, run, ErrRevision)
	}
	return nil
}

// Writes reports whether the run's next event may be of a type that moves it out of its
// state: the table has the row, and builds of the run's own revision know it.
func (t *Table) Writes(mem *Memory, typ events.Type) bool {
	to, ok := t.Next(mem.State, typ)
	row := Row{From: mem.State, Event: typ, To: to}
	return ok && max(events.Since(typ), rowsSince[row]) <= max(t.revisionOf(mem), anyoneWrites)
}

// TableError says that only another program can read a run: its Start pins a transition
// table or a revision of Moorebus that this one does not have, or a later event has a
// version that it does not know. The run is left alone, so that a program that knows it
// can continue it.
type TableError struct {
	Run string
	// Table is the hash that the run pins, Own that of the machine's table.
	Table, Own string
	// Version is what is wrong with a later event; nil: the run's table is unknown.
	Version *events.NewerVersionError
}

// Error names the run, and both tables or the event's version.
func (e *TableError) Error() string {
	if e.Version != nil {
		return fmt.Sprintf("run %s holds what a newer Moorebus wrote: %s", e.Run, e.Version)
	}
	return fmt.Sprintf("run %s is of the transition table %.12s…, this program has %.12s…: only a program with the run's own graph, of its revision or a newer one, can read it",
		e.Run, e.Table, e.Own)
}
