package events

import "strings"

// State is a state of a run, spelled as on the wire: lower snake case. States
// of custom transition tables are further values of this type.
type State string

// The states of the default transition table.
const (
	Idle            State = "idle"
	Planning        State = "planning"
	Acting          State = "acting"
	ParallelActing  State = "parallel_acting"
	WaitingForHuman State = "waiting_for_human"
	WaitingForUser  State = "waiting_for_user"
	Observing       State = "observing"
	Reflecting      State = "reflecting"
	Paging          State = "paging"
	Done            State = "done"
	Errored         State = "error"
	Cancelled       State = "cancelled"
)

var builtinStates = [...]State{
	Idle, Planning, Acting, ParallelActing, WaitingForHuman, WaitingForUser,
	Observing, Reflecting, Paging, Done, Errored, Cancelled,
}

// Subject tokens that stand where a state stands but are none.
const (
	// Control is the `<from>` of events that come from outside the worker of
	// the run's state: cancel, pause, a user's message.
	Control State = "control"
	// Nobody is the `<to>` of events that wake no worker.
	Nobody State = "none"
)

// Name returns the state as SPEC and documents write it: `waiting_for_human` is
// `WaitingForHuman`.
func (s State) Name() string {
	var b strings.Builder
	for word := range strings.SplitSeq(string(s), "_") {
		if word == "" {
			continue
		}
		b.WriteString(strings.ToUpper(word[:1]))
		b.WriteString(word[1:])
	}
	return b.String()
}

// ValidToken reports whether s can be one token of a subject: a namespace, a
// pool or a state. It is `[a-z0-9][a-z0-9_-]{0,62}`.
func ValidToken(s string) bool {
	if len(s) == 0 || len(s) > 63 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case (c == '_' || c == '-') && i > 0:
		default:
			return false
		}
	}
	return true
}
