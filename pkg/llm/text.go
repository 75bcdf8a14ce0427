package llm

// Thought is a thinking pass of a model that speaks the text protocol: words for
// the thinking log, and what the model means to do next.
type Thought struct {
	Meta
	Content string
	// NextState is [StateThinking] or [StateExecuting].
	NextState string
	// Note says why NextState is not what the model wrote; empty where it is.
	Note string
}

// Invalid is a reply that cannot be read. Content is what the model said, byte
// for byte; Reason tells the model what was expected, and where.
type Invalid struct {
	Meta
	Content string
	Reason  string
}

func (Thought) isResponse() {}
func (Invalid) isResponse() {}

// The states of a model that speaks the text protocol, and the key of the prompt
// that both of them have.
const (
	StateThinking  = "thinking"
	StateExecuting = "executing"
	PromptBase     = "base"
)

// Memory is what a model that speaks the text protocol is shown beside the
// conversation. Callers that are asked in another way leave it alone.
type Memory struct {
	// State is [StateThinking] or [StateExecuting]; any other counts as
	// thinking, and that is said in the reply's note.
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

// Parsed is a [Caller] whose replies are thoughts, calls and answers already, as
// recordings are: the text protocol is not put over it.
type Parsed interface {
	Caller
	// Parsed does nothing.
	Parsed()
}
