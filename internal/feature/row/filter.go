package row

// Filter is a filter of the list of runs: a parameter of GET /v1/runs, and if it has the words for them, a flag of
// the command runs and a field of the console.
type Filter struct {
	// Name and Doc are those of the parameter.
	Name, Doc string
	// Usage is that of the flag, with the name of its value in 'quotes'. Its name is Flag, or else Name with - for _;
	// Short is one letter, or empty.
	Usage, Flag, Short string
	// Label is that of the field. The page's address has its value under Name.
	Label string
	Kind  Kind
	// Choices are the values of kind Chosen, each with what the console calls it.
	Choices [][2]string
}

// Kind says what the values of a filter are.
type Kind string

// The kinds. Agent is the name of an agent, Run the id of a run, Search what is looked for in texts.
const (
	Text    Kind = ""
	Agent   Kind = "agent"
	Chosen  Kind = "choice"
	Dollars Kind = "dollars"
	Run     Kind = "run"
	Search  Kind = "search"
	State   Kind = "state"
	Time    Kind = "time"
)

// Values returns the values of the choices.
func (f Filter) Values() []string {
	all := make([]string, len(f.Choices))
	for i, c := range f.Choices {
		all[i] = c[0]
	}
	return all
}
