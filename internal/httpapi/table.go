package httpapi

import (
	"net/http"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/moorebus/moorebus/internal/buildinfo"
	"github.com/moorebus/moorebus/internal/compare"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/dead"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/record"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/control/tally"
	"github.com/moorebus/moorebus/internal/httpapi/inputs"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// storageCodes are of requests about an agent's storage.
var storageCodes = []string{refusal.CodeBadNamespace, refusal.CodeBadAgent, refusal.CodeBadEntry, refusal.CodeEntryNotFound}

// forkCodes are of requests that fork a run.
var forkCodes = slices.Concat(route.PinCodes, route.ChangeCodes, []string{
	refusal.CodeBadPatch, refusal.CodeBadParameter, refusal.CodeBadKey, refusal.CodeKeyReused, refusal.CodeRunPoisoned, refusal.CodeApprovalOpen, refusal.CodeTooManyForks,
})

func with(codes []string, more ...string) []string { return slices.Concat(codes, more) }

const eventStream = "text/event-stream"

// runEvents are the server-sent events of a run's stream.
var runEvents = []route.Parameter{
	{Name: "TYPE", Description: "An event of the run, by its type. id is its number, data its body as it is stored."},
	{Name: "chunk", Description: "Text that a model is still writing, {message_id, offset, text, kind}, without an id. kind is text or reasoning."},
	{Name: "tool_call_delta", Description: "A part of a call that a model is still writing, with the kind tool_call, without an id."},
	{Name: "request", Description: "While the run waits for a model that is its client, what the model is asked, as GET /v1/runs/{id}/request shows it, without an id."},
	{Name: "state", Description: "With view=state, before all events: the run as GET /v1/runs/{id} shows it."},
}

// Bodies and answers by the names that the description gives them.
type (
	runPage      list.Page
	newState     runs.Result
	forkBody     forking.Request
	forkState    forking.Result
	modelRequest control.ModelRequest
	runUsage     record.Usage
	// runTree has nodes that the description does not describe further: they hold themselves.
	runTree struct {
		Root      map[string]any `json:"root"`
		Truncated bool           `json:"truncated,omitempty" jsonschema:"There are more runs than the tree shows."`
	}
	// runState has the type of its memory.
	runState struct {
		runs.RunState
		Memory reducer.Memory `json:"memory"`
	}
)

// table has every request of the API.
func (s *Server) table() []route.Route {
	rows := slices.Concat(s.runRows(), s.commandRows(), s.fleetRows(), s.webhookRows(), s.otherRows(), s.scheduleRows(), requests.Rows(s.control))
	for i, row := range rows {
		if !row.Open && len(row.Streams) == 0 {
			rows[i].Handle = s.whileQuorum(route.Bounded(row.Handle))
		}
	}
	for _, face := range s.cfg.Faces {
		rows = append(rows, face.Routes(s.streams)...)
	}
	return rows
}

// runRows start runs and show them.
func (s *Server) runRows() []route.Route {
	return []route.Route{
		{
			Pattern: "POST /v1/runs", Handle: route.JSON(http.StatusCreated, s.postRun), Status: http.StatusCreated,
			Summary: "Starts a run. Without a task the agent's own task is started.",
			Body:    startBody{}, Answer: control.StartResult{}, Codes: with(route.PinCodes, refusal.CodeAgentNotFound), Example: `{"agent": "researcher", "task": "What is 1+1?"}`,
		},
		{
			Pattern: "GET /v1/runs", Handle: route.JSON(http.StatusOK, s.getRuns), Summary: "Lists the runs of the namespace, newest first.",
			Query: []route.Parameter{
				{Name: "state", Description: "Only runs in this state. With a terminal state the order is that of their ends, else of their starts."},
				{Name: "agent", Description: "Only runs of this agent."},
				{Name: "q", Description: "Only runs with this text in their id, agent, task, or answer or error. Case does not matter."},
				{Name: "id_prefix", Description: "Only runs whose id begins with this."},
				{Name: "since", Description: "Only runs started at or after this time (RFC 3339)."},
				{Name: "until", Description: "Only runs started before this time (RFC 3339)."},
				{Name: "parent", Description: "Only runs that answer calls of this run."},
				{Name: "waiting", Description: "Only runs that wait for human, user, client, actor (of a pool without actors) or any of them."},
				{Name: "paused", Description: "Only runs that are paused: any, or restored for those that a restore paused."},
				{Name: "cost_above", Description: "Only runs whose own events cost more than this number of US dollars."},
				{Name: "limit", Description: "The most runs of the answer, 1 to 1000. Default: 50."},
				{Name: "cursor", Description: "The next of the previous answer."},
				{Name: "after", Description: "The older name of cursor."},
			},
			Answer: runPage{}, Codes: []string{refusal.CodeBadNamespace},
		},
		{
			Pattern: "GET /v1/runs/{id}", Handle: route.JSON(http.StatusOK, s.getRun), Summary: "Shows a run and its memory, now or after one of its events.",
			Query:  []route.Parameter{{Name: "at", Description: "The number of the event. Default: the last one."}},
			Answer: runState{}, Codes: route.RunCodes,
		},
		{
			Pattern: "GET /v1/runs/{id}/events", Handle: s.getRunEvents,
			Summary: "Returns the stored events of a run: one body per line up to the last event, or, with Accept: text/event-stream, a stream that ends after the run's last event.",
			Query:   []route.Parameter{{Name: "from", Description: "The number of the first event. Default: 1."}, {Name: "view", Description: "state: begin with the state before the first event. records: show each event as the log's record, {subject, seq, body}, as exports do."}},
			Headers: []route.Parameter{{Name: "Last-Event-ID", Description: "The number of the last event that the client has. It goes before from."}},
			Streams: []string{"application/x-ndjson", eventStream}, Events: runEvents, Codes: with(route.RunCodes, refusal.CodeTooManyStreams),
		},
		{
			Pattern: "GET /v1/runs/{id}/states", Handle: s.getStates,
			Summary: "Returns the run's memory after an event as {n, at, memory}, and for each later event {n, at, delta}, a JSON Patch: one per line, or, with Accept: text/event-stream, a stream that ends after the run's last event.",
			Query:   []route.Parameter{{Name: "from", Description: "The number of the first event. Default: 1."}, {Name: "to", Description: "The number of the last event. Default: the last one, in a stream the run's end."}},
			Headers: []route.Parameter{{Name: "Last-Event-ID", Description: "The number of the last event that the client has. It goes before from, and no memory is sent."}},
			Streams: []string{"application/x-ndjson", eventStream}, Codes: with(route.RunCodes, refusal.CodeTooManyStreams),
			Events: []route.Parameter{{Name: "memory", Description: "{n, at, memory}: the memory after event n. id is n."}, {Name: "delta", Description: "{n, at, delta}: the patch from the memory before event n to the one after it. id is n."}},
		},
		{
			Pattern: "GET /v1/runs/{id}/tree", Handle: route.JSON(http.StatusOK, s.getTree), Summary: "Shows the runs that a run belongs to: those whose calls it and others answer, and forks.",
			Answer: runTree{}, Codes: route.RunCodes,
		},
		{
			Pattern: "GET /v1/runs/{id}/usage", Handle: route.JSON(http.StatusOK, s.getUsage), Summary: "Shows what a run used: tokens, cost and time, by step, tool, model and sub-run.",
			Answer: runUsage{}, Codes: route.RunCodes,
		},
		{
			Pattern: "GET /v1/runs/{id}/request", Handle: s.getRequest,
			Summary: "Shows what the run's model is asked now, or what it was asked for a reply.",
			Query: []route.Parameter{
				{Name: "at", Description: "The number of the reply's event. Default: the reply that the run waits for."},
				{Name: "body", Description: "true: also the whole body that is sent, byte for byte, in base64."},
			},
			Answer: modelRequest{}, Codes: with(route.RunCodes, refusal.CodeNothingPending, refusal.CodeNoRequest),
		},
		{
			Pattern: "POST /v1/runs/{id}/fork", Handle: route.JSON(http.StatusOK, s.postFork), Summary: "Starts a run that continues from an event of this one.",
			Headers: []route.Parameter{{Name: forking.KeyHeader, Description: "Makes the request safe to repeat: it returns the fork of the first one."}},
			Body:    forkBody{}, Answer: forkState{}, Example: `{"at": 1, "patch": {"task": "What is 2+2?"}}`,
			Codes: forkCodes,
		},
		{
			Pattern: "GET /v1/compare", Handle: route.JSON(http.StatusOK, s.getCompare),
			Summary: "Compares two runs from the last event that both have: which calls of tools each of them makes, how they stand, and what they used.",
			Query:   []route.Parameter{{Name: "a", Description: "The one run."}, {Name: "b", Description: "The other run."}},
			Answer:  compare.Comparison{}, Codes: route.RunCodes,
		},
		{
			Pattern: "GET /v1/events", Handle: s.getEvents, Summary: "Streams the events of all runs of the namespace, from a position or from now on.",
			Query: []route.Parameter{
				{Name: "state", Description: "Only events that enter this state or wake its workers."}, {Name: "type", Description: "Only events of this type."},
				{Name: "from_seq", Description: "The position after which the stream begins, SHARD:SEQ[,SHARD:SEQ…]. The answer's header Moorebus-Position has it."},
				{Name: "view", Description: "records: show each event as the log's record, {subject, seq, body}, as exports do."},
			},
			Headers: []route.Parameter{{Name: "Last-Event-ID", Description: "As from_seq. It goes before it."}},
			Streams: []string{eventStream}, Codes: []string{refusal.CodeBadNamespace, refusal.CodeTooManyStreams},
			Events: []route.Parameter{{Name: "TYPE", Description: "An event, by its type. id is the position in every shard, data its body as it is stored."}},
		},
	}
}

// commandRows change runs.
func (s *Server) commandRows() []route.Route {
	rows := []route.Route{
		{
			Pattern: "POST /v1/runs/{id}/inputs", Handle: route.JSON(http.StatusOK, s.postInputs), Summary: "Posts messages, edits of the context and other inputs to a run, all or none.",
			Body: inputs.Schema(), Answer: control.InputsResult{}, Example: `[{"type": "user-message", "content": "Hello."}]`,
			Codes: route.InputCodes,
		},
		{
			Pattern: "POST /v1/runs/{id}/decisions", Handle: route.JSON(http.StatusOK, s.postDecision), Summary: "Decides on a call that waits for a human.",
			Body: inputs.DecisionBody{}, Answer: newState{}, Example: `{"call_id": "call_1", "decision": "approved", "by": "ada"}`,
			Codes: route.DecisionCodes,
		},
		{
			Pattern: "POST /v1/runs/{id}/budget", Handle: route.JSON(http.StatusOK, s.postBudget), Summary: "Replaces limits of the run's budget: those that the body names.",
			Body: budgetBody{}, Answer: newState{}, Codes: route.ChangeCodes, Example: `{"max_total_tokens": 500000, "by": "ada"}`,
		},
		{
			Pattern: "POST /v1/runs/{id}/resume", Handle: route.JSON(http.StatusOK, s.postResume), Summary: "Continues a run that is paused; with restored: true only one that a restore paused.",
			Body: resumeBody{}, OptionalBody: true, Answer: newState{}, Codes: with(route.ChangeCodes, refusal.CodeNotPaused), Example: `{"reason": "It takes too long.", "by": "ada"}`,
		},
	}
	for _, c := range []struct {
		name, summary string
		handle        route.Endpoint
		codes         []string
	}{
		{"cancel", "Ends a run now.", route.JSON(http.StatusOK, command(s.control.Cancel)), nil},
		{"pause", "Starts no new work of a run until it is resumed.", route.JSON(http.StatusOK, command(s.control.Pause)), nil},
		{"close", "Ends a conversation that waits for its user.", route.JSON(http.StatusOK, command(s.control.Close)), []string{refusal.CodeNotWaiting}},
	} {
		rows = append(rows, route.Route{
			Pattern: "POST /v1/runs/{id}/" + c.name, Handle: c.handle, Summary: c.summary, Body: events.By{}, OptionalBody: true, Answer: newState{},
			Codes: with(route.ChangeCodes, c.codes...), Example: `{"reason": "It takes too long.", "by": "ada"}`,
		})
	}
	return rows
}

// fleetRows show what all runs and workers do.
func (s *Server) fleetRows() []route.Route {
	return []route.Route{
		{
			Pattern: "GET /v1/stats", Handle: route.JSON(http.StatusOK, s.getStats), Answer: control.Stats{}, Codes: []string{refusal.CodeBadNamespace, refusal.CodeBadParameter},
			Summary: "Counts the runs of the namespace by state, what happened by hour, what waits for workers, and the workers.",
		},
		{
			Pattern: "GET /v1/costs", Handle: route.JSON(http.StatusOK, s.getCosts), Answer: tally.Costs{}, Codes: []string{refusal.CodeBadNamespace},
			Summary: "Sums up the tokens and costs of the namespace's runs.",
			Query: []route.Parameter{
				{Name: "by", Description: "agent, model, tool, hour or day. Default: agent."},
				{Name: "since", Description: "Only what happened since this time (RFC 3339), rounded down to the hour within the last 48 hours, else to the day (UTC). Default: from the beginning; for hours the last 48."},
			},
		},
		{
			Pattern: "GET /v1/dead", Handle: route.JSON(http.StatusOK, s.getDead), Answer: deadList{}, Codes: []string{refusal.CodeBadNamespace},
			Summary: "Lists the runs that ended because they could not be processed, and the messages of the log that belong to no run, the oldest first.",
			Query: []route.Parameter{
				{Name: "all", Description: "true: every run that ended by a FatalError."},
				{Name: "dropped", Description: "true: also what was dropped."},
			},
		},
		{
			Pattern: "POST /v1/dead/drop", Handle: route.JSON(http.StatusOK, s.postDrop), Body: dropBody{}, Answer: dropped{},
			Summary: "Hides runs and messages from the list of the dead, all or none. They stay in the log.",
			Codes:   []string{refusal.CodeBadNamespace, refusal.CodeNotDead}, Example: `{"names": ["0198c5a0-5a6b-7c00-8000-000000000001"]}`,
		},
		{
			Pattern: "POST /v1/runs/{id}/retry", Handle: route.JSON(http.StatusCreated, s.postRetry), Status: http.StatusCreated, Answer: dead.Retried{},
			Summary: "Forks a run that ended by a FatalError just before what ended it.",
			Headers: []route.Parameter{{Name: forking.KeyHeader, Description: "Makes the request safe to repeat: it returns the fork of the first one."}},
			Codes:   with(forkCodes, refusal.CodeNotDead),
		},
		{
			Pattern: "GET /v1/waiting", Handle: route.JSON(http.StatusOK, s.getWaiting), Answer: control.WaitingPage{}, Codes: []string{refusal.CodeBadNamespace},
			Summary: "Lists the runs that wait for people, and what they wait for: the soonest deadline first, then the longest wait.",
			Query: []route.Parameter{
				{Name: "limit", Description: "The most runs of the answer, 1 to 200. Default: 50. There may be fewer although more follow."},
				{Name: "cursor", Description: "The next of the previous answer."},
			},
		},
	}
}

// otherRows are about agents, tools and the gateway itself.
func (s *Server) otherRows() []route.Route {
	return []route.Route{
		{
			Pattern: "GET /v1/agents", Handle: route.JSON(http.StatusOK, s.getAgents), Summary: "Lists the stored agents.",
			Answer: []control.AgentInfo{}, Codes: []string{refusal.CodeBadNamespace},
		},
		{
			Pattern: "GET /v1/agents/{name}", Handle: route.JSON(http.StatusOK, s.getAgent), Summary: "Returns the definition of a stored agent.",
			Answer: events.Agent{}, Codes: []string{refusal.CodeBadNamespace, refusal.CodeAgentNotFound},
		},
		{
			Pattern: "PUT /v1/agents/{name}", Handle: route.JSON(http.StatusOK, s.putAgent), Summary: "Stores an agent under a name. A run keeps the version that it started with.",
			Body: events.Agent{}, Bodies: []string{"application/yaml"}, Answer: control.AgentInfo{}, Codes: with(route.AgentCodes, refusal.CodeUnsupportedMedia),
			Example: `{"system_prompt": "You answer with sources.", "llm": {"provider": "openai"}, "tools": ["search"]}`,
		},
		{
			Pattern: "GET /v1/storage", Handle: route.JSON(http.StatusOK, s.getStorages), Summary: "Lists the agents that have storage.",
			Answer: storages{}, Codes: []string{refusal.CodeBadNamespace},
		},
		{
			Pattern: "GET /v1/agents/{name}/storage", Handle: route.JSON(http.StatusOK, s.getStorage), Summary: "Finds entries of an agent's storage, those with the fewest tags first.",
			Query: []route.Parameter{
				{Name: "tags", Description: "Only entries that have all of these tags, separated by commas."}, {Name: "q", Description: "Only entries whose value has this text. Case does not matter."},
				{Name: "exact", Description: "true: only the entry with exactly these tags."}, {Name: "limit", Description: "The most entries of the answer, 1 to 1000. Default: 1000."},
			},
			Answer: foundEntries{}, Codes: storageCodes,
		},
		{
			Pattern: "PUT /v1/agents/{name}/storage", Handle: route.JSON(http.StatusOK, s.putStorage), Summary: "Keeps a value under a set of tags, in the place of one with the same tags.",
			Body: entryBody{}, Answer: events.Entry{}, Codes: storageCodes, Example: `{"tags": ["plan", "today"], "value": "Read on"}`,
		},
		{
			Pattern: "DELETE /v1/agents/{name}/storage", Handle: route.JSON(http.StatusOK, s.deleteStorage), Summary: "Removes the entry with exactly these tags.",
			Query:  []route.Parameter{{Name: "tags", Description: "The entry's tags, separated by commas."}},
			Answer: deleted{}, Codes: storageCodes,
		},
		{
			Pattern: "GET /v1/tools", Handle: route.JSON(http.StatusOK, s.getTools), Summary: "Lists the tools that actors announce.", Answer: []events.ToolSpec{},
		},
		{
			Pattern: "GET /v1/blobs/{bucket}/{sha256}", Handle: s.getBlob, Streams: []string{"application/octet-stream"},
			Summary: "Returns a large result, a file of a message or long reasoning, as an event's reference names it.",
			Query:   []route.Parameter{{Name: "size", Description: "The reference's size. It is required."}},
			Codes:   []string{refusal.CodeUnknownRef},
		},
		{
			Pattern: "GET /v1/version", Handle: route.JSON(http.StatusOK, getVersion), Summary: "Says what this gateway was built from, and which events it can read.",
			Answer: buildinfo.Facts{},
		},
		{
			Pattern: "GET /metrics", Handle: s.getMetrics, Streams: []string{"text/plain"},
			Summary: "Returns the metrics of this gateway and of what waits on the bus, for Prometheus. docs/metrics.md lists them.",
		},
		{
			Pattern: "GET /openapi.json", Handle: s.getOpenAPI, Open: true, Summary: "Returns this description as an OpenAPI 3.1 document.",
			Answer: &jsonschema.Schema{Type: "object", Required: []string{"openapi", "info", "paths"}},
		},
		{Pattern: "GET /healthz", Handle: s.getHealth, Open: true, Summary: "Says that the process is alive.", Answer: health{}},
		{
			Pattern: "GET /readyz", Handle: s.getReady, Open: true, Summary: "Says whether the bus can store events, and has the streams and consumers that are needed.",
			Answer: health{}, Codes: []string{refusal.CodeDiskFull, refusal.CodeStoreFull},
		},
		{
			Pattern: "GET /{$}", Handle: func(w http.ResponseWriter, r *http.Request) error { s.pages.ServeHTTP(w, r); return nil }, Open: true,
			Summary: "Returns the console, a page for people. Its other pages and its files lie beside /v1.", Streams: []string{"text/html"},
		},
		{
			Pattern: "GET /v1/table", Handle: route.JSON(http.StatusOK, s.getTable), Summary: "Returns the transition table: which event leads from which state to which.",
			Answer: transitions{},
		},
	}
}
