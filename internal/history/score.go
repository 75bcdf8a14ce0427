package history

// Score is a score of a run as it is shown: of those of one name, event and person the newest. Text is its
// value as text, and Number is that of a number, else nil.
type Score struct {
	Name, Text string
	Number     *float64
}
