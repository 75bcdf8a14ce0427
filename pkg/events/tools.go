package events

// Calls of tools and their results.
const (
	TypeToolCallDispatched Type = "ToolCallDispatched"
	TypeToolCallStarted    Type = "ToolCallStarted"
	TypeToolCallResult     Type = "ToolCallResult"
	TypeToolSuccess        Type = "ToolSuccess"
	TypeToolFailure        Type = "ToolFailure"
)

var toolsRows = []row{
	define("A call of a batch goes to its tool's pool.", func(p *ToolCallDispatched) string { return p.CallID }),
	define("A call that must not run twice is about to run, or another run or the client answers it.", func(p *ToolCallStarted) string { return p.CallID }),
	define("One call of a batch has its result.", func(p *ToolCallResult) string { return p.CallID + ": " + p.ToolOutcome.summary() }),
	define("A call succeeded, or at least one call of a batch did.", func(p *ToolSuccess) string { return p.Outcome.summary() }),
	define("A call failed, or every call of a batch did.", func(p *ToolFailure) string { return p.Outcome.summary() }),
}

// ToolCallDispatched sends one call of several to its tool's pool.
type ToolCallDispatched struct {
	CallID string `json:"call_id"`
}

func (*ToolCallDispatched) eventType() Type { return TypeToolCallDispatched }

// ToolCallStarted stands in the log before a call that must not run twice.
type ToolCallStarted struct {
	CallID string `json:"call_id"`
}

func (*ToolCallStarted) eventType() Type { return TypeToolCallStarted }

// ToolOutcome is how one call went.
type ToolOutcome struct {
	CallID      string `json:"call_id"`
	Success     bool   `json:"success"`
	Observation string `json:"observation"`
	Code        string `json:"code"`
	LatencyMS   int64  `json:"latency_ms"`
	Ref         *Ref   `json:"ref,omitempty"`
	// Attachments are what the tool returned in addition to text, such as images; the
	// observation says where each of them is stored.
	Attachments []Attachment `json:"attachments,omitempty"`
	// Sandbox is what held the tool's program, if it is one: the parts of its sandbox, or off.
	Sandbox []string `json:"sandbox,omitempty"`
	// Run is the run that answered the call, if one did, Usage what that used with
	// all the runs below it.
	Run   string `json:"run,omitempty"`
	Usage *Usage `json:"usage,omitempty"`
}

// ToolCallResult is the result of one call of several.
type ToolCallResult struct{ ToolOutcome }

func (*ToolCallResult) eventType() Type { return TypeToolCallResult }

// ToolSuccess ends a single call that went well (Outcome is set) or a batch of
// which at least one call did (Outcome is nil).
type ToolSuccess struct{ Outcome *ToolOutcome }

func (*ToolSuccess) eventType() Type { return TypeToolSuccess }

// ToolFailure ends a single call that failed (Outcome is set) or a batch of
// which every call did (Outcome is nil, or holds nothing but the code no_actor
// where no actor was left to end the batch).
type ToolFailure struct{ Outcome *ToolOutcome }

func (*ToolFailure) eventType() Type { return TypeToolFailure }
