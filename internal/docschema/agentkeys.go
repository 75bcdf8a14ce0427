package docschema

import (
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/moorebus/moorebus/pkg/events"
)

// agentKeys are the keys of an agent definition.
var agentKeys = []key{
	{"name", "The agent's name. Runs and other agents call it by this name.", []limit{named(emptyOr(name))}},
	{"description", "What the agent is for, for those who may call it. Its own model does not see it.", nil},
	{"system_prompt", "The system prompt, sent to the model verbatim.", nil},
	{"task", "The task of a run that is started without one.", nil},
	{"mode", "A run in mode task ends with the model's answer. One in mode chat waits for the next message.", []limit{choice(events.ModeTask, events.ModeChat), usually(events.ModeTask)}},
	{"llm", "The model provider and its settings.", []limit{there}},
	{"llm.provider", "One of the planner's providers: openai, anthropic, a name of its provider file, scripted, or client for the run's client.", []limit{there, example("openai", "anthropic", "scripted", "client")}},
	{"llm.timeout", "How long a reply may take. Only for the provider client. Default: as long as the run.", nil},
	{"llm.text", "Use the text protocol, for models without tool calls.", []limit{usually(false)}},
	{"llm.temperature", "The sampling temperature. Default: the provider's.", nil},
	{"llm.top_p", "The nucleus sampling. Default: the provider's.", nil},
	{"llm.seed", "The seed of the sampling. Default: none.", nil},
	{"llm.max_tokens", "The most tokens of a reply. Default: the provider's.", nil},
	{"llm.stop", "Texts that end a reply.", nil},
	{"llm.thinking_tokens", "The most tokens that the model may think before each reply: 0, or at least 1024. The key reasoning.budget_tokens means the same.", []limit{least(0)}},
	{"llm.state_prompts", "The prompts of the text protocol: base, thinking, executing.", nil},
	{"llm.script", "The replies of the provider scripted, in order. Each is exactly one of text, calls and error.", []limit{script}},
	{"models", "The model for each type of task. The key default is for every other type.", nil},
	{"models.*", "A model of the agent's provider by its name, {provider, model}, or a list of PROVIDER/MODEL and {provider, model}: each next one is asked if the ones before it cannot answer.", nil},
	{"on_cut", "How a truncated reply is handled.", []limit{choice(events.CutFail, events.CutContinue, events.CutAccept), usually(events.CutContinue)}},
	{"reasoning", "How much the model reasons. Default: the provider's.", nil},
	{"reasoning.effort", "The effort. A model that lacks it gets the nearest one that it supports.", []limit{choice(events.Efforts()...)}},
	{"reasoning.budget_tokens", "The most tokens of the reasoning before a reply; 0: no limit.", []limit{least(0)}},
	{"reasoning.show", "Commands show the model's full reasoning, not only one line.", []limit{usually(false)}},
	{"record_reasoning", "Keep the model's full reasoning in the log; false: only what must be sent back to the provider.", []limit{usually(true)}},
	{"config", "Limits. 0 turns a limit off, unless its description says otherwise.", nil},
	{"config.max_steps", "Model calls of a run; in chat mode since the last user message.", []limit{least(1)}},
	{"config.max_retries", "How often the model is asked again because of low confidence.", []limit{least(0)}},
	{"config.confidence_threshold", "Below this confidence the model is asked for its calls again.", []limit{least(0), most(1)}},
	{"config.reflect_every_n_steps", "Steps between reflections.", []limit{least(0)}},
	{"config.min_answer_length", "The least length of a final answer in characters. The model is asked again if its answer is shorter. Only in task mode and without an output_schema.", []limit{least(0)}},
	{"config.parallel_tools", "Whether the calls of one reply run concurrently.", nil},
	{"config.context_window_size", "The messages that the model sees; 0: all. Default: 10 in chat mode, else 0.", []limit{least(events.ByMode)}},
	{"config.expand_context_window_size", "How many messages the window grows by if no number is given.", []limit{least(0)}},
	{"config.paging_limit", "The tokens of working memory above which entries are paged out.", []limit{least(0)}},
	{"config.hard_limit", "The tokens of working memory above which the oldest entries are removed in any case, also with a paging_limit of 0.", []limit{least(0)}},
	{"config.token_estimator", "How tokens are counted. Default: bytes/4.", []limit{example("bytes/4", "o200k")}},
	{"config.thinking_log_entries", "The thoughts that are kept.", []limit{least(0)}},
	{"config.max_iterations", "The most passes of a model that uses the text protocol. Other agents have no such limit.", []limit{least(0)}},
	{"config.max_invalid_replies", "The most unusable replies in a row. Only with the text protocol. Default: 5.", []limit{least(0)}},
	{"config.record_chunks", "Record in the log how each reply arrived.", []limit{usually(false)}},
	{"config.max_depth", "How deep runs may nest if agents call agents; 0: this agent may not call others.", []limit{least(0)}},
	{"budget", "What a run may use, together with its sub-runs. An omitted limit is no limit.", nil},
	{"budget.max_input_tokens", "The most tokens sent.", []limit{above}},
	{"budget.max_output_tokens", "The most tokens received.", []limit{above}},
	{"budget.max_total_tokens", "The most tokens sent and received.", []limit{above}},
	{"budget.max_cost_usd", "The most that a run may cost, in US dollars.", []limit{above}},
	{"budget.max_wall_time", "How long a run may take, such as 30m.", nil},
	{"approval", "Which calls wait for a human. Default: none.", nil},
	{"approval.policy", "Which calls wait: none, all, those of tools with a risk or a higher one (at_least), with a higher one (above), those of named tools, or those for which an expression is true.",
		[]limit{one(events.ApproveNever, events.ApproveAlways, events.ApproveAtLeast, events.ApproveAbove, events.ApproveTools, events.ApproveExpr)}},
	{"approval.risk", "The risk of the policies at_least and above: low, medium, high or critical.", []limit{example("low", "medium", "high", "critical")}},
	{"approval.tools", "The tools of the policy tools, by name alone.", nil},
	{"approval.expr", "The expression of the policy expr, over tool, arguments, risk and run.", []limit{example(`tool == "pay" && arguments.amount > 100`)}},
	{"approval.expires", "How long a request waits before it counts as rejected. Default: without a limit.", nil},
	{"approval.outcome_unknown", "What happens if a call that must not run twice may have run: tell the model, or ask a human to decide.",
		[]limit{choice(events.TellModel, events.AskHuman), usually(events.TellModel)}},
	{"output_schema", "The JSON Schema of the answer.", []limit{mapping}},
	{"tools", "The tools that the agent may call: NAME, or POOL/NAME for a tool of that pool.", nil},
	{"provider_tools", "Tools that the model's provider runs, such as {type: web_search}: objects with a type, sent unchanged.", nil},
	{"client_tools", "Tools that the run's client runs.", nil},
	{"client_tools[].name", "The tool's name.", nil},
	{"client_tools[].description", "What the tool does, for the model.", nil},
	{"client_tools[].schema", "The JSON Schema of the arguments.", nil},
	{"client_tools[].risk", "The tool's risk for the approval policy: low, medium, high or critical.", []limit{example("low", "medium", "high", "critical")}},
	{"client_tools[].timeout", "How long after its delivery a call may be answered, at most 720h. Default: 10m.", nil},
	{"labels", "Labels of the agent's runs: texts by keys, by which runs are found. Those of a parent run and of a request go before them, key by key.", nil},
	{"blacklist", "Tools that the model may not call, by name alone.", nil},
}

// above is for a limit that must not be 0.
func above(s *jsonschema.Schema) { s.ExclusiveMinimum = jsonschema.Ptr(0.0) }

// one limits a key to values that it must have.
func one[S ~string](values ...S) limit {
	return func(s *jsonschema.Schema) {
		there(s)
		for _, v := range values {
			s.Enum = append(s.Enum, string(v))
		}
	}
}

// script is the schema of a script, whose reader is the scripted provider.
func script(s *jsonschema.Schema) {
	typed := func(types ...string) *jsonschema.Schema { return &jsonschema.Schema{Types: append(types, "null")} }
	object := func(order []string, properties map[string]*jsonschema.Schema) *jsonschema.Schema {
		return &jsonschema.Schema{Type: "object", Properties: properties, PropertyOrder: order, AdditionalProperties: never()}
	}
	list := func(items *jsonschema.Schema) *jsonschema.Schema {
		s := typed("array")
		s.Items = items
		return s
	}
	optional := func(s *jsonschema.Schema) *jsonschema.Schema {
		s.Type, s.Types = "", []string{"object", "null"}
		return s
	}
	s.Types = []string{"array", "null"}
	s.Items = object([]string{"text", "content", "calls", "error", "confidence", "usage", "finish", "reasoning", "rest"}, map[string]*jsonschema.Schema{
		"text": typed("string"), "content": typed("string"), "confidence": typed("number"), "rest": typed("object"), "finish": typed("string"),
		"calls": list(object([]string{"name", "arguments", "id"}, map[string]*jsonschema.Schema{
			"name": {Type: "string"}, "arguments": typed("object", "string"), "id": typed("string"),
		})),
		"error": optional(object([]string{"kind", "message", "retry_after_ms"}, map[string]*jsonschema.Schema{
			"kind": typed("string"), "message": typed("string"), "retry_after_ms": typed("integer"),
		})),
		"usage": optional(object([]string{"input", "output", "cached", "total", "cost_usd"}, map[string]*jsonschema.Schema{
			"input": typed("integer"), "output": typed("integer"), "cached": typed("integer"), "total": typed("integer"), "cost_usd": typed("number"),
		})),
		"reasoning": list(object([]string{"kind", "text", "data", "id"}, map[string]*jsonschema.Schema{
			"kind": typed("string"), "text": typed("string"), "data": {}, "id": typed("string"),
		})),
	})
}
