package llm

// Thought is a thinking pass under the text protocol: words for the thinking log, and
// the state that the model chose.
type Thought struct {
	Meta
	Content string
	// NextState is [StateThinking] or [StateExecuting].
	NextState string
	// Note says why NextState differs from what the model wrote, or is empty.
	Note string
}

// Invalid is a reply that cannot be read. Content is the reply, byte for byte. Reason
// tells the model what was expected, and where.
type Invalid struct {
	Meta
	Content string
	Reason  string
}

func (Thought) isResponse() {}
func (Invalid) isResponse() {}

// The states of the text protocol, and the key of the prompt for both of them.
const (
	StateThinking  = "thinking"
	StateExecuting = "executing"
	PromptBase     = "base"
)

// Memory is what the text protocol shows beside the conversation. Other callers ignore
// it.
type Memory struct {
	// State is [StateThinking] or [StateExecuting]. Any other counts as thinking,
	// and the reply's note says so.
	State string
	// Entries are working memory, oldest first.
	Entries []MemoryEntry
	// Thoughts are the thinking log, oldest first.
	Thoughts []LogEntry
	// Prompts are the agent's own, by state and for [PromptBase].
	Prompts map[string]string
}

// MemoryEntry is an entry of working memory.
type MemoryEntry struct {
	Tags  []string
	Value string
}

// LogEntry is an entry of the thinking log.
type LogEntry struct {
	Name    string
	Content string
}

// Parsed is a [Caller] whose replies already are thoughts, calls and answers, such as
// recordings. The text protocol is not put over it.
type Parsed interface {
	Caller
	// Parsed does nothing.
	Parsed()
}
