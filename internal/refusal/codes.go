package refusal

// Meaning says when a code is answered.
type Meaning struct {
	// Kinds are the classes of the errors with the code, one or more.
	Kinds []Kind
	// Text is a sentence for the documentation.
	Text string
}

// Meanings has every code.
func Meanings() map[string]Meaning {
	return map[string]Meaning{
		CodeAgentNotFound:    {[]Kind{NotFound}, "No agent of this name is stored in the namespace."},
		CodeAlreadyDecided:   {[]Kind{Conflict}, "The call was decided before; `decision` has the first decision."},
		CodeAmbiguousTool:    {[]Kind{Unprocessable}, "Two pools announce different tools of this name."},
		CodeAnswerNeeded:     {[]Kind{Unprocessable}, "The call asks a question: answer it with `modified`, or reject it."},
		CodeApprovalExpired:  {[]Kind{Conflict}, "The request for approval expired before the decision."},
		CodeBadAgent:         {[]Kind{Invalid, Unprocessable}, "The agent's definition is malformed (400), or the stored one is no longer valid (422)."},
		CodeBadApproval:      {[]Kind{Unprocessable}, "The agent's approval policy cannot be evaluated."},
		CodeBadDecision:      {[]Kind{Invalid}, "The decision is malformed."},
		CodeBadEstimator:     {[]Kind{Unprocessable}, "No token estimator has the name in `config.token_estimator`."},
		CodeBadInput:         {[]Kind{Invalid}, "One of the inputs is malformed; `index` says which, from 0."},
		CodeBadKey:           {[]Kind{Invalid}, "The header `Idempotency-Key` is malformed."},
		CodeBadNamespace:     {[]Kind{Invalid}, "The header `Moorebus-Namespace` is no name of a namespace."},
		CodeBadOutputSchema:  {[]Kind{Unprocessable}, "The agent's `output_schema` is no valid JSON Schema."},
		CodeBadParameter:     {[]Kind{Invalid}, "A parameter of the query or a number in the body is unknown, malformed or out of range."},
		CodeBadPatch:         {[]Kind{Invalid}, "The fork's patch is malformed, or what it gives is no valid agent."},
		CodeBadRequest:       {[]Kind{Invalid}, "The body is malformed, or has an unknown key."},
		CodeBadRunID:         {[]Kind{Invalid}, "The run id is no lower-case UUIDv7."},
		CodeBadToolSchema:    {[]Kind{Unprocessable}, "The schema of one of the agent's tools is invalid; `tool` names it."},
		CodeBlacklisted:      {[]Kind{Unprocessable}, "The agent's blacklist forbids the tool."},
		CodeConflict:         {[]Kind{Conflict}, "The run's state does not allow the request."},
		CodeDiskFull:         {[]Kind{Unavailable}, "The disk of the bus is full; nothing was stored unless the message says otherwise."},
		CodeEmptyTask:        {[]Kind{Invalid}, "There is no task: neither in the request nor in the agent."},
		CodeForbidden:        {[]Kind{Forbidden}, "The host name is not one of this gateway, or the request is from a page of another site."},
		CodeInternal:         {[]Kind{Internal}, "The gateway failed; its log has the reason."},
		CodeInvalidArguments: {[]Kind{Unprocessable}, "The new arguments do not match the tool's schema."},
		CodeKeyReused:        {[]Kind{Conflict}, "The idempotency key was used for another request."},
		CodeMethodNotAllowed: {[]Kind{WrongMethod}, "The path exists, but not with this method; the header `Allow` has those that it has."},
		CodeNotFound:         {[]Kind{NotFound}, "There is nothing at this path."},
		CodeNotPaused:        {[]Kind{Conflict}, "The run is not paused."},
		CodeNotWaiting:       {[]Kind{Conflict}, "The run, or the call, does not wait for this."},
		CodeNotYours:         {[]Kind{Conflict}, "The run's own planners and actors do this, not its client."},
		CodeParentGone:       {[]Kind{Conflict}, "The run is a fork, and the run that it was forked from was purged."},
		CodePending:          {[]Kind{Unavailable}, "The announcement of a tool or a provider is being renewed; try again."},
		CodeRunEnded:         {[]Kind{Conflict}, "The run has ended and accepts nothing more."},
		CodeRunExists:        {[]Kind{Conflict}, "A run with this id exists; `run` is its id."},
		CodeRunNotFound:      {[]Kind{NotFound}, "The namespace has no such run."},
		CodeRunPoisoned:      {[]Kind{Conflict}, "The run's log has a record that is not a legal event."},
		CodeRunPurged:        {[]Kind{NotFound, Conflict}, "The run was purged (409 if the request wants its id for a new run)."},
		CodeStoreFull:        {[]Kind{Unavailable}, "The store of the bus has reached its limit; nothing was stored unless the message says otherwise."},
		CodeTooLarge:         {[]Kind{TooLarge}, "The body is larger than 1 MiB, or the event would be larger than 960 KiB."},
		CodeTooManyForks:     {[]Kind{Conflict}, "The run is the last of as many forks in a row as there may be."},
		CodeTooManyStreams:   {[]Kind{TooMany}, "The gateway, or this address, has as many open event streams as it may have."},
		CodeUnauthorized:     {[]Kind{Unauthorized}, "The bearer token is missing or wrong."},
		CodeUnavailable:      {[]Kind{Unavailable}, "The bus failed, or is not there yet; try again."},
		CodeUnknownCall:      {[]Kind{NotFound, Unprocessable}, "The run has no such tool call."},
		CodeUnknownProvider:  {[]Kind{Unprocessable}, "No planner announces a provider that the agent names."},
		CodeUnknownRef:       {[]Kind{Unprocessable}, "The object store has nothing of this size and digest."},
		CodeUnknownTable:     {[]Kind{Conflict}, "The run has a transition table that this version does not know."},
		CodeUnknownTool:      {[]Kind{Unprocessable}, "No living actor announces a tool that the agent names, or the run has no such tool."},
		CodeUnsupportedMedia: {[]Kind{WrongMedia}, "The Content-Type is neither YAML nor JSON."},
	}
}
