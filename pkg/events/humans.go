package events

// What people say: messages, and decisions on calls that wait for them.
const (
	TypeHumanApprovalRequired Type = "HumanApprovalRequired"
	TypeHumanDecision         Type = "HumanDecision"
	TypeHumanApproved         Type = "HumanApproved"
	TypeHumanModified         Type = "HumanModified"
	TypeHumanRejected         Type = "HumanRejected"
	TypeHumanApprovedParallel Type = "HumanApprovedParallel"
	TypeApprovalExpired       Type = "ApprovalExpired"
	TypeUserMessage           Type = "UserMessage"
	TypeClosed                Type = "Closed"
)

var humansRows = []row{
	define("Calls wait for a human to decide.", func(p *HumanApprovalRequired) string { return p.summary() }),
	define("A human decided about one call of a batch.", func(p *HumanDecision) string { return p.summary() }),
	define("A human lets the call run.", func(p *HumanApproved) string { return p.summary() }),
	define("A human lets the call run with other arguments.", func(p *HumanModified) string { return p.summary() }),
	define("A human rejects the call, or every call of a batch was rejected.", func(p *HumanRejected) string { return p.summary() }),
	define("A human decided about every call of a batch, and some of them run.", func(*HumanApprovedParallel) string { return "" }),
	define("Nobody decided before the deadline, so every waiting call is rejected.", func(*ApprovalExpired) string { return "" }),
	define("The user sends a message.", func(p *UserMessage) string { return Shown(p.Content, p.Parts) }),
	define("A conversation that was waiting for its user is closed.", func(p *Closed) string { return p.summary() }),
}

// Request is one call that waits for a human.
type Request struct {
	CallID    string `json:"call_id"`
	Tool      string `json:"tool"`
	Arguments string `json:"arguments"`
	Risk      string `json:"risk"`
	Reason    string `json:"reason"`
	// Asks is true where Reason is a question, and the decision has to be
	// modified, with the answer in its arguments.
	Asks bool `json:"asks,omitempty"`
}

// HumanApprovalRequired hands a reply's calls to a human. Deadline is RFC 3339. Resume is what a
// tool that asks while it runs needs to continue with the answer; only that tool can interpret it.
type HumanApprovalRequired struct {
	ToolCallReply
	Requests []Request `json:"requests"`
	Deadline string    `json:"deadline,omitempty"`
	Resume   string    `json:"resume,omitempty"`
}

func (*HumanApprovalRequired) eventType() Type { return TypeHumanApprovalRequired }

// The decisions on a call.
const (
	DecisionApproved = "approved"
	DecisionRejected = "rejected"
	DecisionModified = "modified"
)

// Decision is what a named human said about one call.
type Decision struct {
	CallID    string `json:"call_id,omitempty"`
	Decision  string `json:"decision,omitempty"`
	Arguments string `json:"arguments,omitempty"`
	Reason    string `json:"reason,omitempty"`
	By        string `json:"by,omitempty"`
}

// HumanDecision is the decision on one call of several.
type HumanDecision struct{ Decision }

func (*HumanDecision) eventType() Type { return TypeHumanDecision }

// HumanApproved lets a single call run as it is.
type HumanApproved struct{ Decision }

func (*HumanApproved) eventType() Type { return TypeHumanApproved }

// HumanModified lets a single call run with other arguments.
type HumanModified struct{ Decision }

func (*HumanModified) eventType() Type { return TypeHumanModified }

// HumanRejected refuses a single call, or (empty) an entire batch.
type HumanRejected struct{ Decision }

func (*HumanRejected) eventType() Type { return TypeHumanRejected }

// HumanApprovedParallel lets the accepted calls of a batch run.
type HumanApprovedParallel struct{}

func (*HumanApprovedParallel) eventType() Type { return TypeHumanApprovedParallel }

// ApprovalExpired rejects every call that waits.
type ApprovalExpired struct{}

func (*ApprovalExpired) eventType() Type { return TypeApprovalExpired }

// UserMessage is what the user said. A message whose id is known is ignored. Parts are there
// where the message is more than text; Content is then their [TextOf].
type UserMessage struct {
	MessageID string `json:"message_id"`
	Content   string `json:"content"`
	Parts     []Part `json:"parts,omitempty"`
}

func (*UserMessage) eventType() Type { return TypeUserMessage }

// Closed ends a conversation that waits for its user.
type Closed struct{ By }

func (*Closed) eventType() Type { return TypeClosed }
