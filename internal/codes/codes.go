// Package codes names how calls and runs end, as the log has it. The codes of refused requests
// are those of package refusal, and a tool may add its own.
package codes

// The prefixes of an observation.
const (
	SuccessPrefix = "SUCCESS: "
	ErrorPrefix   = "ERROR: "
)

// The codes of calls that no tool answered itself.
const (
	OK          = "ok"
	Cancelled   = "cancelled"
	CircuitOpen = "circuit_open"
	Panic       = "panic"
	// InputRequired is the code of a call that needs an answer of a human.
	InputRequired = "input_required"
	// OutcomeUnknown is the code of a `once` call that was sent and not answered.
	OutcomeUnknown = "outcome_unknown"
	// NoActor is the code of a call whose pool has no actor.
	NoActor = "no_actor"
	// NotApproved is the code of a call that needs an approval which is not in the log.
	NotApproved = "not_approved"
	// Storage is the code of a call that the agent's storage could not serve, and of a run that
	// ends because entries of its working memory could not be stored.
	Storage = "storage_failed"
)

// The codes of replies that are of no use.
const (
	// EmptyReply is the code of a reply that holds neither text nor a call.
	EmptyReply = "empty_reply"
	// MalformedReply is the code of a reply of the text protocol that could not be read.
	MalformedReply = "malformed_reply"
	// TooLarge is the code of a reply that does not fit into the log.
	TooLarge = "too_large"
)

// The codes of runs.
const (
	AttemptsExhausted = "attempts_exhausted"
	InvalidTransition = "invalid_transition"
	NoCurrentCall     = "no_current_call"
	NoHandler         = "no_handler_for_state"
	Poison            = "poison"
	SafetyCap         = "safety_cap_exceeded"
	Stalled           = "stalled"
	WallTime          = "budget_wall_time"
)

// The kinds of an LlmAttemptFailed that mean something to the fold.
const (
	// KindRateLimited is a provider that refuses for a time.
	KindRateLimited = "rate_limited"
	// KindHandler is a handler that failed or panicked.
	KindHandler = "handler"
	// KindWorkerLost is a worker that went away in the middle.
	KindWorkerLost = "worker_lost"
	// KindBrokenReply is a reply that came in part, without an ending.
	KindBrokenReply = "broken_reply"
	// KindOverloaded is a provider that cannot answer now.
	KindOverloaded = "overloaded"
	// KindNetwork is a provider that cannot be reached, or does not answer.
	KindNetwork = "network"
	// KindContextTooLong is a request that is longer than the model takes.
	KindContextTooLong = "context_too_long"
	// KindObsolete is no failure either: it says what a reply cost that came when the run no
	// longer wanted it, and of which nothing was published.
	KindObsolete = "obsolete"
	// KindInterrupted is no failure: it is the text that was read of a reply that something else made obsolete.
	KindInterrupted = "interrupted"
)
