package events

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Mode says when a run ends.
type Mode string

// The modes.
const (
	// ModeTask runs end with their answer.
	ModeTask Mode = "task"
	// ModeChat runs wait for the next message after each answer.
	ModeChat Mode = "chat"
)

// Agent is an agent's definition: what a file or a request says, and, once
// resolved, what Start pins. It holds no endpoint, key or command: those belong
// to the planner and the actor.
type Agent struct {
	Name string `json:"name"`
	// Description says to those who may call the agent what it is for; its model
	// does not see it.
	Description  string `json:"description,omitempty"`
	SystemPrompt string `json:"system_prompt,omitempty"`
	// Task is the task of a run that is started without one.
	Task string `json:"task,omitempty"`
	Mode Mode   `json:"mode"`
	LLM  LLM    `json:"llm"`
	// Models are the models by task type; `default` is for every other one.
	Models map[string]Models `json:"models,omitempty"`
	// OnCut says what becomes of a reply that was truncated; empty is [CutContinue].
	OnCut OnCut `json:"on_cut,omitempty"`
	// Reasoning says how much the model reasons; nil: as its provider does it.
	Reasoning *ReasoningConfig `json:"reasoning,omitempty"`
	// RecordReasoning false keeps of the model's reasoning only what its provider wants
	// back; nil is true.
	RecordReasoning *bool           `json:"record_reasoning,omitempty"`
	Config          Config          `json:"config"`
	Budget          *Budget         `json:"budget,omitempty"`
	Approval        *Approval       `json:"approval,omitempty"`
	OutputSchema    json.RawMessage `json:"output_schema,omitempty"`
	Tools           []string        `json:"tools,omitempty"`
	// ClientTools are the tools that the run's own client carries out.
	ClientTools []ClientTool `json:"client_tools,omitempty"`
	Blacklist   []string     `json:"blacklist,omitempty"`
	// ProviderTools are tools that the model's provider itself carries out, as its API wants
	// them.
	ProviderTools []json.RawMessage `json:"provider_tools,omitempty"`
	// Labels are those of the agent's runs.
	Labels Labels `json:"labels,omitempty"`
}

// LLM says which of the planner's providers answers, and how it is asked.
type LLM struct {
	Provider string `json:"provider"`
	// Timeout is how long a reply of [ClientProvider] may take; 0: as long as the run.
	// No other provider has it.
	Timeout Duration `json:"timeout,omitempty"`
	// Text puts the text protocol over the provider.
	Text        bool     `json:"text,omitempty"`
	Temperature *float64 `json:"temperature,omitempty"`
	TopP        *float64 `json:"top_p,omitempty"`
	Seed        *int     `json:"seed,omitempty"`
	MaxTokens   int      `json:"max_tokens,omitempty"`
	Stop        []string `json:"stop,omitempty"`
	// ThinkingTokens is what the model may think before each reply, within
	// MaxTokens where that is set; 0 for nothing. Providers that have no such
	// setting ignore it.
	ThinkingTokens int `json:"thinking_tokens,omitempty"`
	// StatePrompts are the text protocol's prompts, by [TextStates] and for base.
	StatePrompts map[string]string `json:"state_prompts,omitempty"`
	// Script is the scripted provider's own: its entries are checked by it.
	Script json.RawMessage `json:"script,omitempty"`
}

// Config holds an agent's limits. Zero turns a limit off where that makes
// sense; [DefaultAgent] has the defaults.
type Config struct {
	MaxSteps            int     `json:"max_steps"`
	MaxRetries          int     `json:"max_retries"`
	ConfidenceThreshold float64 `json:"confidence_threshold"`
	ReflectEveryNSteps  int     `json:"reflect_every_n_steps"`
	// MinAnswerLength is the least length of a final answer, in characters; it is
	// for answers in task mode without an output schema.
	MinAnswerLength int  `json:"min_answer_length"`
	ParallelTools   bool `json:"parallel_tools"`
	// ContextWindowSize is in messages; [ByMode] until it is resolved.
	ContextWindowSize       int `json:"context_window_size"`
	ExpandContextWindowSize int `json:"expand_context_window_size"`
	// PagingLimit and HardLimit bound working memory, in tokens.
	PagingLimit int `json:"paging_limit"`
	HardLimit   int `json:"hard_limit"`
	// TokenEstimator names how tokens are estimated; empty is bytes/4.
	TokenEstimator string `json:"token_estimator,omitempty"`
	// ThinkingLogEntries is the length of the thinking log.
	ThinkingLogEntries int `json:"thinking_log_entries"`
	// MaxIterations bounds the thinking and executing passes of a model that speaks
	// the text protocol since the last user message. For other agents it is 0 once
	// it is resolved: MaxSteps bounds them.
	MaxIterations int `json:"max_iterations"`
	// MaxInvalidReplies bounds how many replies in a row of a model that speaks
	// the text protocol may be of no use; nil until it is resolved, and for agents
	// that do not speak it.
	MaxInvalidReplies *int `json:"max_invalid_replies,omitempty"`
	// RecordChunks keeps in each reply's event how its text came.
	RecordChunks bool `json:"record_chunks,omitempty"`
	// MaxDepth is how many runs may stand below one another where agents call
	// agents; 0: this one may call none. That of the first run holds for all below
	// it.
	MaxDepth int `json:"max_depth"`
}

// ByMode is the context window's size while it is left to the mode: everything
// in task mode, the last 10 messages in chat mode.
const ByMode = -1

// DefaultAgent returns a definition with every default set, to be decoded onto.
func DefaultAgent() Agent {
	return Agent{Config: Config{
		MaxSteps: 15, MaxRetries: 3, ConfidenceThreshold: 0.4, ReflectEveryNSteps: 5,
		MinAnswerLength: 1, ParallelTools: true, ContextWindowSize: ByMode,
		ExpandContextWindowSize: 10, PagingLimit: 4096, HardLimit: 8192,
		ThinkingLogEntries: 10, MaxIterations: 1000, MaxDepth: 5,
	}}
}

// Resolve fills in what is left to other fields and checks every value. The
// error names the key and says what to write.
func (a Agent) Resolve() (Agent, error) {
	if a.Mode == "" {
		a.Mode = ModeTask
	}
	if a.Config.ContextWindowSize == ByMode {
		a.Config.ContextWindowSize = 0
		if a.Mode == ModeChat {
			a.Config.ContextWindowSize = 10
		}
	}
	if string(a.OutputSchema) == "null" {
		a.OutputSchema = nil
	}
	a.resolveText()
	return a, a.check()
}

func (a Agent) check() error {
	c := a.Config
	switch {
	case !ValidToken(a.Name):
		return fmt.Errorf("name: %q is not a name; use [a-z0-9][a-z0-9_-]{0,62}", a.Name)
	case a.Mode != ModeTask && a.Mode != ModeChat:
		return fmt.Errorf("mode: %q is not a mode; use task or chat", a.Mode)
	case a.LLM.Provider == "":
		return fmt.Errorf("llm.provider: is missing; use openai, anthropic, scripted or a name that the planner knows")
	case c.MaxSteps < 1:
		return fmt.Errorf("config.max_steps: must be at least 1, is %d", c.MaxSteps)
	case !(c.ConfidenceThreshold >= 0 && c.ConfidenceThreshold <= 1): // also not for NaN
		return fmt.Errorf("config.confidence_threshold: must be between 0 and 1, is %v", c.ConfidenceThreshold)
	case len(a.OutputSchema) > 0 && !isObject(a.OutputSchema):
		return fmt.Errorf("output_schema: must be a JSON Schema object")
	}
	for _, limit := range []struct {
		key   string
		value int
	}{
		{"max_retries", c.MaxRetries}, {"reflect_every_n_steps", c.ReflectEveryNSteps},
		{"min_answer_length", c.MinAnswerLength}, {"context_window_size", c.ContextWindowSize},
		{"expand_context_window_size", c.ExpandContextWindowSize}, {"paging_limit", c.PagingLimit},
		{"hard_limit", c.HardLimit}, {"thinking_log_entries", c.ThinkingLogEntries}, {"max_iterations", c.MaxIterations},
		{"max_invalid_replies", c.InvalidReplies()},
		{"max_depth", c.MaxDepth},
	} {
		if limit.value < 0 {
			return fmt.Errorf("config.%s: must not be negative, is %d", limit.key, limit.value)
		}
	}
	if err := a.LLM.checkThinking(); err != nil {
		return err
	}
	if err := a.LLM.checkPrompts(); err != nil {
		return err
	}
	if err := a.checkModels(); err != nil {
		return err
	}
	if err := a.CheckProviderTools(); err != nil {
		return err
	}
	if err := a.checkClientTools(); err != nil {
		return err
	}
	if err := a.checkTimeout(); err != nil {
		return err
	}
	if err := a.Budget.check(); err != nil {
		return err
	}
	return a.Approval.Check()
}

// Budget bounds what a run may use; 0 means no bound.
type Budget struct {
	MaxInputTokens  int      `json:"max_input_tokens,omitempty"`
	MaxOutputTokens int      `json:"max_output_tokens,omitempty"`
	MaxTotalTokens  int      `json:"max_total_tokens,omitempty"`
	MaxCostUSD      float64  `json:"max_cost_usd,omitempty"`
	MaxWallTime     Duration `json:"max_wall_time,omitempty"`
}

func (b *Budget) check() error {
	if b == nil {
		return nil
	}
	if err := b.Check(); err != nil {
		return fmt.Errorf("budget.%w", err)
	}
	return nil
}

// Check returns an error that begins with the key of a limit that is none, and says
// what may stand there.
func (b *Budget) Check() error {
	for _, limit := range []struct {
		key   string
		value int
	}{{"max_input_tokens", b.MaxInputTokens}, {"max_output_tokens", b.MaxOutputTokens}, {"max_total_tokens", b.MaxTotalTokens}} {
		if limit.value < 0 {
			return fmt.Errorf("%s: must be an integer above 0, is %d; omit it for no limit", limit.key, limit.value)
		}
	}
	switch {
	case !(b.MaxCostUSD >= 0) || math.IsInf(b.MaxCostUSD, 1): // also not for NaN
		return fmt.Errorf("max_cost_usd: must be a number of US dollars above 0, is %v; leave it out for no limit", b.MaxCostUSD)
	case b.MaxWallTime < 0:
		return fmt.Errorf("max_wall_time: must be a time above 0 such as 10m, is %s; leave it out for no limit", time.Duration(b.MaxWallTime))
	}
	return nil
}

// ApprovalPolicy says which calls wait for a human.
type ApprovalPolicy string

// The policies. Never is the default.
const (
	ApproveNever  ApprovalPolicy = "never"
	ApproveAlways ApprovalPolicy = "always"
	// ApproveAtLeast asks for calls of a tool of a risk or a higher one, and
	// ApproveAbove only for those of a higher one.
	ApproveAtLeast ApprovalPolicy = "at_least"
	ApproveAbove   ApprovalPolicy = "above"
	// ApproveTools asks for the tools that are named.
	ApproveTools ApprovalPolicy = "tools"
	// ApproveExpr asks where an expression is true.
	ApproveExpr ApprovalPolicy = "expr"
)

// Approval is an agent's approval policy.
type Approval struct {
	Policy ApprovalPolicy `json:"policy"`
	// Risk is the bound of the policies at_least and above.
	Risk string `json:"risk,omitempty"`
	// Tools are the names of policy tools, without their pools.
	Tools []string `json:"tools,omitempty"`
	// Expr is the expression of policy expr over tool, arguments, risk, run.
	Expr string `json:"expr,omitempty"`
	// Expires is how long a request waits before it counts as rejected.
	Expires Duration `json:"expires,omitempty"`
	// OutcomeUnknown says what happens if a call that must not run twice may have run; empty is
	// [TellModel].
	OutcomeUnknown OutcomePolicy `json:"outcome_unknown,omitempty"`
}

// OutcomePolicy says what becomes of a call whose outcome is unknown.
type OutcomePolicy string

// The policies. TellModel is the default, and what calls of a batch get in any
// case.
const (
	// TellModel gives the model an observation that says so.
	TellModel OutcomePolicy = "tell"
	// AskHuman has a human say whether the call runs again.
	AskHuman OutcomePolicy = "ask"
)

// Deadline returns when a request that is made at the given time expires, in the
// form that the log has it; empty for never.
func (a *Approval) Deadline(now time.Time) string {
	if a == nil || a.Expires == 0 {
		return ""
	}
	return now.UTC().Add(time.Duration(a.Expires)).Format(TimeFormat)
}

// Risks lists the risks, lowest first.
func Risks() []string { return []string{"low", "medium", "high", "critical"} }

// RiskRank returns a risk's place in [Risks], and that of low for an empty one;
// false if there is no such risk.
func RiskRank(risk string) (int, bool) {
	if risk == "" {
		return 0, true
	}
	for i, r := range Risks() {
		if r == risk {
			return i, true
		}
	}
	return 0, false
}

// Check reports what is wrong with a policy. It does not look into an expression. A nil policy is
// right.
func (a *Approval) Check() error {
	if a == nil {
		return nil
	}
	switch a.Policy {
	case ApproveNever, ApproveAlways:
	case ApproveAtLeast, ApproveAbove:
		if _, ok := RiskRank(a.Risk); !ok || a.Risk == "" {
			return fmt.Errorf("approval.risk: %q is not a risk; use low, medium, high or critical", a.Risk)
		}
	case ApproveTools:
		if len(a.Tools) == 0 {
			return fmt.Errorf("approval.tools: policy tools needs at least one tool's name")
		}
	case ApproveExpr:
		if a.Expr == "" {
			return fmt.Errorf("approval.expr: policy expr needs an expression")
		}
	default:
		return fmt.Errorf("approval.policy: %q is not a policy; use always, never, at_least, above, tools or expr", a.Policy)
	}
	switch a.OutcomeUnknown {
	case "", TellModel, AskHuman:
	default:
		return fmt.Errorf("approval.outcome_unknown: %q is neither tell nor ask", a.OutcomeUnknown)
	}
	if a.Expires < 0 {
		return fmt.Errorf("approval.expires: must not be negative")
	}
	return nil
}

// Duration is a span of time written as Go writes it: "30m", "24h".
type Duration time.Duration

// MarshalText writes the duration.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads a duration such as "1h30m".
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration such as 30s, 10m or 24h", text)
	}
	*d = Duration(v)
	return nil
}

// ToolSpec is what a run knows of a tool: announced by an actor, pinned by
// Start.
type ToolSpec struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema"`
	Effect      string          `json:"effect"`
	Pool        string          `json:"pool"`
	Risk        string          `json:"risk"`
	// Asks is true for a tool that puts its arguments' question to a human and
	// returns the answer: every call of it waits, whatever the policy says.
	Asks bool `json:"asks,omitempty"`
	// Client is true for a tool of [ClientPool]: no actor has it, and the run's client
	// posts the results. Timeout is how long after its delivery a call may be answered.
	Client  bool     `json:"client,omitempty"`
	Timeout Duration `json:"timeout,omitempty"`
	// Services are the NATS services that have the tool; several make it ambiguous.
	Services []string `json:"services,omitempty"`
	// Guide is what the tool's server says about all of its tools. Announcements have it.
	// Start has it once, in the description of the first tool with that guide.
	Guide string `json:"guide,omitempty"`
	// Approval is the policy of the tool's own file. It holds whatever the agent's says.
	Approval *Approval `json:"approval,omitempty"`
	// Sandbox is what holds the tool's program where the actor runs, or off. Only announcements have
	// it: other actors of the pool may run on other systems. The event of a call has it, too.
	Sandbox []string `json:"sandbox,omitempty"`
}

// SplitTool splits what an agent's list of tools names: `tool`, of whichever pool, or
// `pool/tool`. pool is empty where none is named. The tool may be a pattern
// such as `server.*`.
func SplitTool(ref string) (pool, name string) {
	pool, name, found := strings.Cut(ref, "/")
	if !found {
		return "", ref
	}
	return pool, name
}

// CheckNames reports what the agent's labels and no list of its tools may hold when the agent is
// defined: of the lists, a text that names no tool, a name that stands in tools or in the blacklist
// twice, and, in the blacklist and in the approval policy, a tool with its pool. Those
// two are compared with what the model calls, which has no pool. [Agent.Resolve] does
// not check that: definitions that were stored before have to stay readable.
func (a Agent) CheckNames() error {
	if err := a.Labels.Check(); err != nil {
		return err
	}
	if len(a.Labels) > MaxLabels {
		return fmt.Errorf("labels: there are %d, at most %d are allowed", len(a.Labels), MaxLabels)
	}
	seen := map[string]bool{}
	for i, ref := range a.Tools {
		pool, name := SplitTool(ref)
		switch {
		case ref == "":
			return fmt.Errorf("tools[%d]: is not a tool's name", i)
		case name == "", name != ref && !ValidToken(pool), strings.Contains(name, "/"):
			return fmt.Errorf("tools[%d]: %q is neither a tool's name nor POOL/TOOL", i, ref)
		case pool == ClientPool:
			return fmt.Errorf("tools[%d]: %q: no actor serves the pool %q; put the tool under client_tools", i, ref, pool)
		case strings.Contains(strings.TrimSuffix(name, "*"), "*"), name == "*":
			return fmt.Errorf("tools[%d]: %q is no pattern: the * is its last character and follows the beginning of names, as in SERVER.*", i, ref)
		case seen[name]:
			return fmt.Errorf("tools[%d]: the name %q stands there twice; rename or remove one of the two, also if their pools differ", i, name)
		}
		seen[name] = true
	}
	if err := checkBare("blacklist", a.Blacklist); err != nil {
		return err
	}
	for i, name := range a.Blacklist {
		if slices.Contains(a.Blacklist[:i], name) {
			return fmt.Errorf("blacklist[%d]: %q stands there twice", i, name)
		}
	}
	if a.Approval == nil {
		return nil
	}
	return checkBare("approval.tools", a.Approval.Tools)
}

// checkBare reports names that are not those of tools alone.
func checkBare(key string, names []string) error {
	for i, ref := range names {
		if _, name := SplitTool(ref); name != ref {
			return fmt.Errorf("%s[%d]: %q names a pool: write the tool's name alone, %q", key, i, ref, name)
		}
		if ref == "" {
			return fmt.Errorf("%s[%d]: is not a tool's name", key, i)
		}
	}
	return nil
}

func isObject(raw json.RawMessage) bool {
	var m map[string]json.RawMessage
	return json.Unmarshal(raw, &m) == nil && m != nil
}
