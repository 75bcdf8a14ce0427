package events

// HandedOff has a run go on under another agent, pinned as by Start. It comes before
// the result of the call that asked for it.
type HandedOff struct {
	Agent     Agent      `json:"agent"`
	AgentHash string     `json:"agent_hash"`
	Tools     []ToolSpec `json:"tools"`
	CallID    string     `json:"call_id"`
	Reason    string     `json:"reason,omitempty"`
}

// Type returns [TypeHandedOff].
func (*HandedOff) Type() Type { return TypeHandedOff }

func (*HandedOff) isPayload() {}
