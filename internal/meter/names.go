package meter

import "slices"

// The labels that several metrics have. Those with Outside are bounded by [MaxValues].
var (
	// Outcome is the outcome of what was tried.
	Outcome  = Label{Name: "outcome", Outside: true}
	state    = Label{Name: "state", Outside: true}
	agent    = Label{Name: "agent", Outside: true}
	tool     = Label{Name: "tool", Outside: true}
	pool     = Label{Name: "pool", Outside: true}
	kind     = Label{Name: "kind", Outside: true}
	shard    = Label{Name: "shard"}
	result   = Label{Name: "result"}
	role     = Label{Name: "role"}
	provider = Label{Name: "gen_ai_provider_name", Outside: true}
	model    = Label{Name: "gen_ai_request_model", Outside: true}
	failure  = Label{Name: "error_type", Outside: true}
	// Tenant is the namespace.
	Tenant = Label{Name: "namespace", Outside: true}
)

// The buckets: of seconds from a tenth of a millisecond to ten minutes, of numbers of appends and
// records, and of tokens as in the GenAI conventions.
var (
	seconds = []float64{.0001, .0005, .001, .005, .01, .05, .1, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
	numbers = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000}
	tokens  = []float64{1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864}
)

// The processes that have a metric.
const (
	// Gateway has the metrics of features.
	Gateway   = "gateway"
	everyRole = "every role"
	planner   = "planner"
	actor     = "actor, gateway"
	exporter  = "telemetry"
	server    = "a process with the embedded server"
)

var all []*Metric

// All returns the metrics of the core in the order of the pages. Those of Go and of the process come from
// the library.
func All() []*Metric { return slices.Clone(all) }

func add(kind Kind, by, name, help string, buckets []float64, labels ...Label) *Metric {
	m := &Metric{Kind: kind, By: by, Name: name, Help: help, Buckets: buckets, Labels: labels}
	all = append(all, m)
	return m
}

func counter(by, name, help string, labels ...Label) *Metric {
	return add(Counter, by, name, help, nil, labels...)
}

func gauge(by, name, help string, labels ...Label) *Metric {
	return add(Gauge, by, name, help, nil, labels...)
}

func histogram(by, name, help string, buckets []float64, labels ...Label) *Metric {
	return add(Histogram, by, name, help, buckets, labels...)
}

// The metrics. The name of a label explains it, unless the help text does.
var (
	Build = gauge(everyRole, "moorebus_build_info", "1, with the version of the build, and the revision that it can read.", Label{Name: "version"}, Label{Name: "revision"})

	// Runs and events. A process counts only its own appends, so the sum over all processes is
	// that of the log.
	Transitions = counter(everyRole, "moorebus_transitions_total", "Events that this process appended, by the states before and after.",
		Label{Name: "from", Outside: true}, Label{Name: "to", Outside: true}, Label{Name: "type", Outside: true})
	Starts     = counter(everyRole, "moorebus_runs_started_total", "Runs that this process started, forks included.", agent)
	Ends       = counter(everyRole, "moorebus_runs_ended_total", "Runs that ended by an event of this process, by their last state and that event's type.", agent, state, Label{Name: "type", Outside: true})
	Poisoned   = counter(everyRole, "moorebus_runs_poisoned_total", "Runs that this process ended because their log has a record that is not a legal event.")
	Stalls     = counter(Gateway, "moorebus_runs_stalled_total", "Runs with work and no event for the time of --stall: redriven the first two times, ended the third time.", result)
	OverBudget = counter(everyRole, "moorebus_runs_over_budget_total", "Runs that ended because their budget was used up.")
	Failures   = counter(everyRole, "moorebus_attempts_failed_total", "Failed attempts that are tried again, by the kind of the failure.", state, kind)
	LostRaces  = counter(everyRole, "moorebus_lost_races_total", "Appends that were refused because another process appended to the run first.")
	Unknown    = counter(everyRole, "moorebus_unknown_appends_total", "Appends whose outcome was unknown at first.")
	AppendTime = histogram(everyRole, "moorebus_append_duration_seconds", "Time until the log acknowledged an append, including the flush.", seconds)
	Cache      = counter(everyRole, "moorebus_run_cache_total", "Lookups of a run: hit, in this process's memory; miss, read from the log.", result)
	Snapshots  = counter(everyRole, "moorebus_snapshots_total", "Lookups of a snapshot when a run was read: used, missing, or unusable.", result)

	// Deliveries, by the state that the event entered.
	Stages = histogram(everyRole, "moorebus_delivery_stage_seconds",
		"Stages of a delivery: queued, from storing the event to its delivery, by the clocks of server and worker; worked, from there to the append of the last outcome; acknowledged, from there to the verdict.", seconds, state, Label{Name: "stage"})
	Redeliveries = counter(everyRole, "moorebus_redeliveries_total", "Deliveries of an event after the first one.", state)

	// Models. Names and labels are those of the GenAI conventions of OpenTelemetry, where they have one.
	ModelTime = histogram(planner, "gen_ai_client_operation_duration_seconds", "Time of model calls; error_type is empty for a reply.",
		seconds, Label{Name: "gen_ai_operation_name"}, provider, model, failure)
	FirstChunk = histogram(planner, "gen_ai_client_operation_time_to_first_chunk_seconds", "Time from a model call to the first chunk of its reply.",
		seconds, Label{Name: "gen_ai_operation_name"}, provider, model)
	TokenUsage = histogram(everyRole, "gen_ai_client_token_usage", "Tokens of model calls, as the replies in the log report them; gen_ai_token_type is input or output.",
		tokens, Label{Name: "gen_ai_operation_name"}, provider, model, Label{Name: "gen_ai_token_type"})
	CachedTokens = counter(everyRole, "moorebus_model_cached_tokens_total", "Input tokens that the provider read from its cache; they are part of the input tokens.", provider, model)
	Cost         = counter(everyRole, "moorebus_model_cost_usd_total", "Cost of model calls in US dollars, from the events in the log.", provider, model)

	// Tools, of every kind: builtin, HTTP, command, MCP, service, agents.
	ToolTime = histogram(actor, "moorebus_tool_call_duration_seconds", "Time of tool calls; outcome is the code of the result, ok for a success.", seconds, tool, pool, Outcome)

	// How much is stored and flushed together.
	Batches         = histogram(everyRole, "moorebus_append_batch_appends", "Appends that were stored as one atomic batch (group commit); 1 is a lone append.", numbers)
	Flushes         = histogram(server, "moorebus_flush_records", "Records that one flush to the disk covered (group flush).", numbers)
	FlushTime       = histogram(server, "moorebus_flush_duration_seconds", "Time of one flush to the disk (group flush).", seconds)
	CertificateLeft = gauge(everyRole, "moorebus_certificate_left_seconds", "Time until a certificate ends, negative afterwards; certificate is server or authority, those of the bus, or http, that of the process's HTTP listener. Those of the bus are as they were when the role connected.", Label{Name: "certificate"})

	DiskFree   = gauge(server, "moorebus_disk_free_bytes", "Free space of the file system that has the data directory.")
	DiskTotal  = gauge(server, "moorebus_disk_size_bytes", "Size of the file system that has the data directory.")
	DiskFull   = gauge(server, "moorebus_disk_full", "1 while the embedded server stores nothing because its disk is too full.")
	LogBytes   = gauge(Gateway, "moorebus_log_bytes", "Size of a shard of the log.", shard)
	LogLimit   = gauge(Gateway, "moorebus_log_limit_bytes", "Largest size of a shard of the log; -1: no limit.", shard)
	LogRecords = gauge(Gateway, "moorebus_log_records", "Records in a shard of the log.", shard)

	// Queues and workers. Only the gateway asks, at most every 5 s.
	Waiting  = gauge(Gateway, "moorebus_backlog_waiting", "Events that were never delivered, by the state that they entered; acting stands for parallel_acting, too.", state, pool)
	InFlight = gauge(Gateway, "moorebus_backlog_in_flight", "Events that were delivered and have no verdict yet.", state, pool)
	Oldest   = gauge(Gateway, "moorebus_backlog_oldest_seconds", "Age of the oldest event that has no verdict yet; 0 if there is none.", state, pool)
	Tokens   = gauge(Gateway, "moorebus_tokens_waiting", "Estimated size in tokens of the requests that wait for planners.")
	Workers  = gauge(Gateway, "moorebus_workers", "Live planners and actors, from their announcements.", role, pool)
	Observed = gauge(Gateway, "moorebus_bus_observed", "1 if the last check of the log and the queues succeeded, else 0: their gauges are then missing.")

	// Traces.
	Spans      = counter(exporter, "moorebus_telemetry_spans_total", "Spans that the receiver acknowledged (sent) or rejected (refused).", result)
	SpanErrors = counter(exporter, "moorebus_telemetry_failures_total", "Failed requests to the receiver, which are repeated.")
	SpanLag    = gauge(exporter, "moorebus_telemetry_lag_seconds", "Age of the oldest event whose spans the receiver has not acknowledged; 0 if there is none or another process sends.")

	// HTTP.
	Requests     = counter(Gateway, "moorebus_gateway_http_requests_total", "HTTP requests by status.", Label{Name: "code"})
	GatewayRuns  = counter(Gateway, "moorebus_gateway_runs_started_total", "Runs that this gateway started for requests.")
	GatewayAdded = counter(Gateway, "moorebus_gateway_events_appended_total", "Events that this gateway appended for requests.")
	FeedClients  = gauge(Gateway, "moorebus_gateway_stream_clients", "Clients that are reading an event stream.")
	FeedLost     = counter(Gateway, "moorebus_gateway_stream_clients_lost_total", "Clients that disconnected or read too slowly.")
	FeedDelay    = histogram(Gateway, "moorebus_gateway_stream_delay_seconds", "Time from storing an event to writing it to a client's stream, for events stored while the stream was open.", seconds)
)
