package providers

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/moorebus/moorebus/internal/codec"
)

// Capabilities are what a model server takes and wants for one model. The keys are
// those of the table (table.json), of `capabilities` in a provider file, and of
// docs/models.md.
type Capabilities struct {
	// Row is the name of the table's row; empty for a server that is not known.
	Row string `json:"-"`
	// API is the only API with the model: [APIChat] or [APIResponses]. Empty: the one of
	// the provider's kind. Only providers of kind openai have a choice.
	API string `json:"api"`
	// ChatTools says when chat completions take tools; see [Capabilities.NeedsResponses].
	ChatTools string `json:"chat_tools"`
	// ReasoningField is where a message that is sent back holds its reasoning:
	// reasoning_content, reasoning, reasoning_details, content (a list with thinking
	// chunks), think_tags (in front of the text), extra_content (signatures of messages
	// and calls), or none. ReasoningBack says which messages are sent back with it.
	ReasoningField string `json:"reasoning_field"`
	ReasoningBack  string `json:"reasoning_back"`
	// ReasoningRequired says that such a message is refused without the field. If nothing
	// is known of its reasoning, it is sent with ReasoningStandIn.
	ReasoningRequired bool   `json:"reasoning_required"`
	ReasoningStandIn  string `json:"reasoning_stand_in"`
	// MistralMessages says that the id of a call has nine letters and digits, and that no
	// user message follows a tool result.
	MistralMessages bool `json:"mistral_messages"`
	// CallSignature stands in for the signature of a call that has none, where every
	// call must have one.
	CallSignature string `json:"call_signature"`
	// ThinkTags says that the model writes its reasoning as <think>…</think> at the
	// beginning of its text.
	ThinkTags bool `json:"think_tags"`
	// EffortField is how an effort is sent: reasoning_effort, reasoning (an object),
	// thinking (an object), thinking+reasoning_effort, enable_thinking,
	// chat_template_kwargs, output_config (Anthropic), or none.
	EffortField string `json:"effort_field"`
	// Efforts are the levels that the model has, from none to max.
	Efforts []string `json:"efforts"`
	// BudgetField is how a bound of reasoning tokens is sent: reasoning.max_tokens,
	// thinking_budget, extra_body.google, thinking.budget_tokens (Anthropic), or none.
	BudgetField string `json:"budget_field"`
	// Refuses are the sampling settings that are not sent: temperature, top_p, seed,
	// stop, max_tokens, and top_p_with_temperature for top_p beside a temperature
	// (Anthropic).
	Refuses []string `json:"refuses"`
	// MaxTokensField is the name of the bound of a reply's tokens.
	MaxTokensField string `json:"max_tokens_field"`
	// MaxReply is the most tokens that a request may allow a reply, its thinking included; 0
	// is not known. Only the bound that Moorebus itself chooses is held to it (Anthropic).
	MaxReply int `json:"max_reply"`
	// OutputSchema is how a structured answer is asked for, and OutputWithTools how
	// beside tools: native (the API's own setting), final_tool (a tool that takes the
	// answer), second_pass (a second request without tools), or none.
	OutputSchema    string `json:"output_schema"`
	OutputWithTools string `json:"output_with_tools"`
	// ForcedTools says that a request can make the model call a tool.
	ForcedTools bool `json:"forced_tools"`
	// StrictSchemas says that a server can be told to hold to a schema strictly.
	StrictSchemas bool `json:"strict_schemas"`
	// Images and Files say in which messages they are taken: none, user, or all (user
	// messages and tool results).
	Images string `json:"images"`
	Files  string `json:"files"`
	// Body are further keys of every request.
	Body json.RawMessage `json:"body"`
	// DropsContext says that a prompt that is too long is cut without a word.
	DropsContext bool `json:"drops_context"`
	// Thinking is Anthropic's thinking.type that turns thinking on: enabled or adaptive;
	// none: the model does not think. ThinkingOff says that it can be disabled.
	// ThinkingDisplay says that its text comes only if it is asked for. ThinksByDefault says
	// that the model thinks if a request does not mention it. Preserved says that thinking
	// blocks are bound to everything that stood before them.
	Thinking        string `json:"thinking"`
	ThinkingOff     bool   `json:"thinking_off"`
	ThinkingDisplay bool   `json:"thinking_display"`
	ThinksByDefault bool   `json:"thinks_by_default"`
	Preserved       bool   `json:"preserved"`
	// CacheTTL is how long the prompt cache keeps what a request marks (Anthropic); empty: as
	// long as the server does it.
	CacheTTL string `json:"cache_ttl"`
}

// The APIs of models.
const (
	APIChat      = "chat"
	APIResponses = "responses"
)

// The values of [Capabilities] that adapters compare with.
const (
	None = "none"

	ToolsAlways        = "always"
	ToolsWithoutEffort = "without_effort"
	ToolsEffortNone    = "effort_none"
	ToolsNever         = "never"

	BackNever  = "never"
	BackTurn   = "turn"  // replies with calls since the last user message
	BackCalls  = "calls" // all replies with calls
	BackAlways = "always"

	Native     = "native"
	FinalTool  = "final_tool"
	SecondPass = "second_pass"

	PartsUser = "user"
	PartsAll  = "all"

	ThinkingEnabled  = "enabled"
	ThinkingAdaptive = "adaptive"
)

// Efforts are the levels of effort as agents write them, in order.
var Efforts = []string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}

// choices are the values of the keys that have a fixed set.
var choices = map[string][]string{
	"api":             {"", APIChat, APIResponses},
	"cache_ttl":       {"", "5m", "1h"},
	"chat_tools":      {ToolsAlways, ToolsWithoutEffort, ToolsEffortNone, ToolsNever},
	"reasoning_field": {None, "reasoning_content", "reasoning", "reasoning_details", "content", "think_tags", "extra_content"},
	"reasoning_back":  {BackNever, BackTurn, BackCalls, BackAlways},
	"effort_field": {None, "reasoning_effort", "reasoning", "thinking", "thinking+reasoning_effort", "enable_thinking",
		"chat_template_kwargs", "output_config"},
	"efforts":           Efforts,
	"budget_field":      {None, "reasoning.max_tokens", "thinking_budget", "extra_body.google", "thinking.budget_tokens"},
	"refuses":           {"temperature", "top_p", "seed", "stop", "max_tokens", "top_p_with_temperature"},
	"max_tokens_field":  {"max_tokens", "max_completion_tokens"},
	"output_schema":     {Native, FinalTool, None},
	"output_with_tools": {Native, FinalTool, SecondPass, None},
	"images":            {None, PartsUser, PartsAll},
	"files":             {None, PartsUser, PartsAll},
	"thinking":          {None, ThinkingEnabled, ThinkingAdaptive},
}

// NeedsResponses reports whether the model has to be asked over the Responses API:
// always, or for a request with tools and this effort (empty: none is asked for).
func (c Capabilities) NeedsResponses(tools bool, effort string) bool {
	switch {
	case c.API != "":
		return c.API == APIResponses
	case !tools:
		return false
	}
	switch c.ChatTools {
	case ToolsNever:
		return true
	case ToolsEffortNone:
		return effort != "none"
	case ToolsWithoutEffort:
		return effort != "" && effort != "none"
	}
	return false
}

// Effort returns the level of the model that is nearest to the one that was asked for,
// and the higher of two that are equally near. None is taken only for none. Empty: the
// model has no such level.
func (c Capabilities) Effort(asked string) string {
	want, best := slices.Index(Efforts, asked), ""
	distance := len(Efforts) + 1
	for at, level := range Efforts { // from none to max, so the later one of two is higher
		if !slices.Contains(c.Efforts, level) || level == "none" && asked != "none" {
			continue
		}
		if d := max(at-want, want-at); d <= distance {
			best, distance = level, d
		}
	}
	return best
}

// Sends reports whether a sampling setting, such as temperature, may be sent.
func (c Capabilities) Sends(setting string) bool { return !slices.Contains(c.Refuses, setting) }

// Host is a model server as the table knows it. The zero value is an unknown server.
type Host struct {
	kind      string
	row       *row
	overrides json.RawMessage
}

// HostOf finds the row of a server: the one that like names, else the one with the
// address's host. If there is none, the model's name decides later. kind is the
// provider's kind. overrides is an object of keys of [Capabilities] that apply to all
// models; it may be nil. The error names the key of the provider file.
func HostOf(kind, like, baseURL string, overrides json.RawMessage) (Host, error) {
	h := Host{kind: kind, overrides: overrides}
	if err := CheckCapabilities(overrides); err != nil {
		return h, err
	}
	for i, r := range table().Rows {
		if like == r.Name || like == "" && r.has(kind) && r.serves(baseURL) {
			h.row = &table().Rows[i]
			break
		}
	}
	switch {
	case like == "" || h.row != nil && h.row.has(kind):
		return h, nil
	case h.row == nil:
		return h, fmt.Errorf("like: %q is not a row of the table of models; use %s", like, strings.Join(Rows(kind), ", "))
	}
	return h, fmt.Errorf("like: row %s is not for kind %s; use %s", like, kind, strings.Join(Rows(kind), ", "))
}

// Row returns the name of the server's row, or nothing if the server is not known.
func (h Host) Row() string {
	if h.row == nil {
		return ""
	}
	return h.row.Name
}

// Capabilities returns what the server takes and wants for the model.
func (h Host) Capabilities(model string) Capabilities {
	var c Capabilities
	read(table().Unknown, &c)
	read(table().UnknownKinds[h.kind], &c)
	name := plainName(model)
	r, safe := h.row, c.OutputWithTools
	if r == nil {
		r = rowOfModel(h.kind, name)
	}
	if r != nil {
		c.Row = r.Name
		read(r.Set, &c)
		for _, m := range r.Models {
			if m.Match.MatchString(name) {
				read(m.Set, &c)
			}
		}
		if h.row == nil {
			// Who serves the model is not known, so neither is what the server makes of a
			// schema, or of keys that the model's own server takes.
			c.OutputWithTools, c.Body = safe, nil
		}
	}
	read(h.overrides, &c)
	return c
}

// Rows returns the names of the rows for a kind of provider.
func Rows(kind string) []string {
	var names []string
	for _, r := range table().Rows {
		if r.has(kind) {
			names = append(names, r.Name)
		}
	}
	return names
}

// CheckCapabilities reports what is wrong with an object of keys of [Capabilities]. The
// error begins with the key, below `capabilities`.
func CheckCapabilities(overrides json.RawMessage) error {
	if len(overrides) == 0 {
		return nil
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(overrides, &keys); err != nil || keys == nil {
		return errors.New("capabilities: must be a mapping; docs/models.md has its keys")
	}
	var known map[string]json.RawMessage
	all, _ := json.Marshal(Capabilities{}) // it always encodes
	_ = json.Unmarshal(all, &known)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		value := keys[key]
		if known[key] == nil { // the decoder would take it in any case of letters
			return fmt.Errorf("capabilities.%s: is not a key; docs/models.md has them", key)
		}
		var c Capabilities
		if err := json.Unmarshal(fmt.Appendf(nil, "{%q:%s}", key, value), &c); err != nil || len(c.Body) > 0 && c.Body[0] != '{' {
			return fmt.Errorf("capabilities.%s: %s is not a value of it; docs/models.md has them", key, value)
		}
		if err := checkChoice(key, value); err != nil {
			return err
		}
	}
	return nil
}

// reserved are the keys of a request's body that Moorebus sets for every API.
var reserved = []string{
	"model", "messages", "input", "instructions", "system", "tools", "tool_choice", "stream", "stream_options",
	"response_format", "text", "store", "include", "previous_response_id", "n", "background", "conversation",
}

// CheckExtraBody refuses keys of requests that would change what the log says was sent, or
// how the reply comes. The error begins with the key.
func CheckExtraBody(extra map[string]json.RawMessage) error {
	for _, key := range slices.Sorted(maps.Keys(extra)) {
		if slices.Contains(reserved, key) {
			return fmt.Errorf("extra_body.%s: is set by Moorebus itself; remove it", key)
		}
		if !json.Valid(extra[key]) {
			return fmt.Errorf("extra_body.%s: is not valid JSON", key)
		}
	}
	return nil
}

func checkChoice(key string, value json.RawMessage) error {
	allowed, limited := choices[key]
	if !limited {
		return nil
	}
	var all []string
	if json.Unmarshal(value, &all) != nil {
		all = make([]string, 1)
		_ = json.Unmarshal(value, &all[0]) // the caller has decoded it
	}
	for _, one := range all {
		if !slices.Contains(allowed, one) {
			return fmt.Errorf("capabilities.%s: %q is not a value of it; use %s", key, one, strings.Join(slices.DeleteFunc(slices.Clone(allowed), func(s string) bool { return s == "" }), ", "))
		}
	}
	return nil
}

// read puts an object of keys over c. Lists are replaced.
func read(object json.RawMessage, c *Capabilities) {
	if len(object) == 0 {
		return
	}
	over := *c
	over.Efforts, over.Refuses = nil, nil // decoding would write into the old lists
	if err := json.Unmarshal(object, &over); err != nil {
		panic(err) // the table has a test, and overrides are checked
	}
	if over.Efforts == nil {
		over.Efforts = c.Efforts
	}
	if over.Refuses == nil {
		over.Refuses = c.Refuses
	}
	*c = over
}

// plainName is a model's name without the prefix of a router (openai/o3) or of a
// fine-tuned model (ft:o4-mini:…), in lower case.
func plainName(model string) string {
	model = model[strings.LastIndexByte(model, '/')+1:]
	return strings.ToLower(strings.TrimPrefix(model, "ft:"))
}

func rowOfModel(kind, name string) *row {
	for i, r := range table().Rows {
		if r.Names.Regexp != nil && r.has(kind) && r.Names.MatchString(name) {
			return &table().Rows[i]
		}
	}
	return nil
}

//go:embed table.json
var tableJSON []byte

// tableForm is the form of table.json. Unknown is what counts for servers without a row, and
// what rows begin with; UnknownKinds is put over it for the kinds of providers that differ.
type tableForm struct {
	Unknown      json.RawMessage            `json:"unknown"`
	UnknownKinds map[string]json.RawMessage `json:"unknown_kinds"`
	Rows         []row                      `json:"rows"`
}

// row is a server. Hosts are the hosts of its addresses; `*.` at the beginning stands
// for any subdomain, `*:port` for this port of any host, and `:port` alone for this port of
// a loopback address. Names are the models whose name alone finds the row. Each of Models
// that matches a name is put over Set, in order.
type row struct {
	Name   string          `json:"name"`
	For    string          `json:"for"`
	Kinds  []string        `json:"kinds"`
	Hosts  []string        `json:"hosts"`
	Names  pattern         `json:"names"`
	Set    json.RawMessage `json:"set"`
	Models []rule          `json:"models"`
	fact
}

// rule says what differs for some models of a row.
type rule struct {
	Match pattern         `json:"match"`
	For   string          `json:"for"`
	Set   json.RawMessage `json:"set"`
	fact
}

// fact says where an entry is from: a page, and the day on which it said so.
type fact struct {
	Source string `json:"source"`
	Date   string `json:"date"`
}

// pattern is a regular expression in the table.
type pattern struct{ *regexp.Regexp }

// UnmarshalJSON compiles the pattern.
func (p *pattern) UnmarshalJSON(data []byte) (err error) {
	var text string
	if err = json.Unmarshal(data, &text); err == nil {
		p.Regexp, err = regexp.Compile(text)
	}
	return err
}

var table = sync.OnceValue(func() (t tableForm) {
	if err := codec.Strict(tableJSON, &t); err != nil {
		panic(err) // the file is embedded and has a test
	}
	return t
})

// has reports whether the row is for a kind of provider. Who has OpenAI's API may have both
// forms of it.
func (r row) has(kind string) bool {
	return slices.Contains(r.Kinds, kind) || kind == APIResponses && slices.Contains(r.Kinds, OpenAI)
}

// serves reports whether an address is one of the row's.
func (r row) serves(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	for _, host := range r.Hosts {
		switch {
		case strings.HasPrefix(host, ":"):
			if u.Port() == host[1:] && loopback(u.Hostname()) {
				return true
			}
		case strings.HasPrefix(host, "*:"):
			if u.Port() == host[2:] {
				return true
			}
		case strings.HasPrefix(host, "*"):
			if strings.HasSuffix(strings.ToLower(u.Hostname()), host[1:]) {
				return true
			}
		case strings.EqualFold(u.Hostname(), host):
			return true
		}
	}
	return false
}

func loopback(host string) bool {
	return host == "localhost" || host == "::1" || strings.HasPrefix(host, "127.")
}

// Choices returns the values of the keys that have a fixed set, by key; the key may be a list
// of them. The empty value is not among them.
func Choices() map[string][]string {
	all := map[string][]string{}
	for key, values := range choices {
		all[key] = slices.DeleteFunc(slices.Clone(values), func(s string) bool { return s == "" })
	}
	return all
}
