package reducer

import (
	"fmt"
	"slices"

	"github.com/moorebus/moorebus/pkg/events"
)

// builtIn are the hashes of the built-in tables, oldest first, the last one that of
// [DefaultTable]. Each has the rows of the ones before it, so that runs which were
// started with one of those go on.
var builtIn = []string{
	"b2902885ab6b12917408e9dedcb83cbfdb5a1118bf0b3298d741dafa964b1784",
	"3dd1c101c1c673e47179700868837ffeb36991c03da1e760040feaea99211bcf",
}

// BuiltInTables returns the hashes of the built-in tables, oldest first.
func BuiltInTables() []string { return slices.Clone(builtIn) }

// TableError says that a run was started with a transition table that the machine
// does not have: what its events mean, only a program with that table can say.
type TableError struct {
	Run string
	// Table is the hash of the run's table, Own that of the machine's.
	Table, Own string
}

// Error names the run and both tables.
func (e *TableError) Error() string {
	return fmt.Sprintf("run %s is of the transition table %.12s…, this program has %.12s…: only a program with the run's own graph can read it",
		e.Run, e.Table, e.Own)
}

// knows reports whether the machine's table can be that of a run: the same one, or
// an older one of the built-in ones. A run that names none is taken for one's own.
func (m *Machine) knows(table string) bool {
	own := m.table.Hash()
	if table == "" || table == own {
		return true
	}
	return slices.Contains(builtIn, own) && slices.Contains(builtIn, table)
}

// checkTable refuses the first event of a run of another table.
func (m *Machine) checkTable(mem *Memory, e *events.Event) error {
	start, ok := e.Data.(*events.Start)
	if !ok || mem.N > 0 || m.knows(start.TableHash) {
		return nil
	}
	return &TableError{Run: mem.RunID, Table: start.TableHash, Own: m.table.Hash()}
}
