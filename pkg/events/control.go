package events

import "encoding/json"

// The events that end, pause and resume a run, and the other control events.
const (
	TypePaused         Type = "Paused"
	TypeResumed        Type = "Resumed"
	TypeBudgetRaised   Type = "BudgetRaised"
	TypeCancelled      Type = "Cancelled"
	TypeMaxSteps       Type = "MaxSteps"
	TypeBudgetExceeded Type = "BudgetExceeded"
	TypeFatalError     Type = "FatalError"

	TypeCustomMemorySet Type = "CustomMemorySet"
	TypeAdmitted        Type = "Admitted"
)

var controlRows = []row{
	define("No new work starts until the run is resumed.", func(p *Paused) string { return p.summary() }),
	define("Work may start again, and the work of the current state is delivered again.", func(p *Resumed) string { return p.summary() }),
	define("The run gets new limits.", func(p *BudgetRaised) string { return p.summary() }),
	define("A person or program ends the run.", func(p *CancelledRun) string { return p.summary() }),
	define("The run ends because it used up its planning calls.", func(p *MaxSteps) string { return p.summary() }),
	define("The run ends because it used up its budget.", func(p *BudgetExceeded) string { return p.summary() }),
	define("The run ends because no worker can continue it.", func(p *FatalError) string { return p.summary() }),
	define("A client stores data in the run's custom memory.", func(p *CustomMemorySet) string { return p.Key }).broughtBy(5),
	define("A queued run may begin to work.", func(*Admitted) string { return "" }).broughtBy(6),
}

// Outcome is why a run ended, machine-readable code first.
type Outcome struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// MaxSteps ends a run that used up its planning calls.
type MaxSteps struct{ Outcome }

func (*MaxSteps) eventType() Type { return TypeMaxSteps }

// BudgetExceeded ends a run that used up its budget.
type BudgetExceeded struct{ Outcome }

func (*BudgetExceeded) eventType() Type { return TypeBudgetExceeded }

// FatalError ends a run that nobody can continue. Poison names the stored
// message that could not be read, where that is the reason; Usage what was billed
// for a reply that ended the run.
type FatalError struct {
	Outcome
	Poison
	Usage *Usage `json:"usage,omitempty"`
	// Facts are those of the reply that ended the run, where one did.
	Facts
}

func (*FatalError) eventType() Type { return TypeFatalError }

// Poison describes a stored message that is not a legal event of its run.
type Poison struct {
	Type   string `json:"type,omitempty"`
	N      uint64 `json:"n,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// By says who acted from outside, and why.
type By struct {
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"`
}

// CancelledRun ends a run from outside (event type Cancelled; [Cancelled] is
// the state).
type CancelledRun struct{ By }

func (*CancelledRun) eventType() Type { return TypeCancelled }

// Paused keeps new work from starting.
type Paused struct {
	By
	// Restored marks the event by which a restore holds a run until somebody has checked it. Requests
	// to pause a run cannot set it.
	Restored bool `json:"restored,omitempty"`
}

func (*Paused) eventType() Type { return TypePaused }

// Resumed lets work start again, and delivers the work of the current state again.
type Resumed struct {
	By
	// Redrive marks the event by which a gateway re-drives a stalled run: the run ends if nothing
	// follows. Requests to resume a run cannot set it.
	Redrive bool `json:"redrive,omitempty"`
}

func (*Resumed) eventType() Type { return TypeResumed }

// BudgetRaised replaces the limits that it names.
type BudgetRaised struct {
	Budget Budget `json:"budget"`
	By
}

func (*BudgetRaised) eventType() Type { return TypeBudgetRaised }

// CustomMemorySet keeps a client's own data under a key of the run's custom memory and
// replaces what was there. It changes nothing else.
type CustomMemorySet struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
}

func (*CustomMemorySet) eventType() Type { return TypeCustomMemorySet }

// Admitted lets a run work whose [Start] is queued. Its time is when the run's wall time begins.
type Admitted struct{}

func (*Admitted) eventType() Type { return TypeAdmitted }
