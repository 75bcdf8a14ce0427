package llmhttp

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/llm"
)

// Invalid returns the error of a request that cannot be sent.
func Invalid(message string) *llm.Error {
	return &llm.Error{Kind: llm.KindInvalid, Message: message}
}

// Decode reads the reply's JSON. The error is the provider's if the reply states one, else
// it says that the base URL may be wrong.
func (r *Reply) Decode(v any) error {
	err := json.NewDecoder(bytes.NewReader(r.Body)).Decode(v)
	switch {
	case StatesError(r.Body):
		return r.Stated(r.Body)
	case err != nil:
		return r.Unfit(err)
	}
	return nil
}

// Unfit is the error of a reply that is none of the API's; why says what it lacks.
func (r *Reply) Unfit(why error) *llm.Error {
	e := r.Says(fmt.Sprintf("the server's reply is not %s (is the base URL right?): %v", r.client.row.Reply, why))
	e.Err = r.client.hidden().harmless(why)
	return e
}

// Says is the error of a reply that cannot be used.
func (r *Reply) Says(message string) *llm.Error {
	return &llm.Error{Kind: llm.KindOther, Status: r.response.StatusCode, Message: r.client.hidden().clean(message)}
}

// Stated is the error that a part of the reply states.
func (r *Reply) Stated(part []byte) *llm.Error {
	return r.client.problem(read(part, r.response.StatusCode), r.response)
}

func (c *Client) network(err error, status int) *llm.Error {
	return &llm.Error{Kind: llm.KindNetwork, Status: status, Message: c.hidden().clean(err.Error()), Err: c.hidden().harmless(err)}
}

func (c *Client) tooLarge(status int) *llm.Error {
	return &llm.Error{
		Kind: llm.KindOther, Status: status, Err: errTooLarge,
		Message: fmt.Sprintf("the server's reply is larger than %d bytes", c.opts.MaxBytes),
	}
}

// refused is the cause of an error about a parameter of the request.
type refused string

// Error names the parameter.
func (r refused) Error() string { return "the server refuses the parameter " + string(r) }

// stated is an error in the provider's words.
func (c *Client) stated(body []byte, resp *http.Response) *llm.Error {
	return c.problem(read(body, resp.StatusCode), resp)
}

func (c *Client) problem(p problem, resp *http.Response) *llm.Error {
	e := &llm.Error{Kind: p.sort(c.row.TypeFirst), Status: p.status, RetryAfter: retry.FromHeader(resp.Header, time.Now())}
	switch {
	case p.refusesReasoning():
		e.Err = refused(ReturnedReasoning)
	case p.param != "":
		e.Err = refused(p.param)
	}
	if e.RetryAfter == 0 && (e.Kind == llm.KindRateLimited || e.Kind == llm.KindOverloaded) {
		e.RetryAfter = p.wait()
	}
	if p.outOfCredit() {
		p.message = "the account has no credit left; add some, then start again: " + p.message
	}
	if len(p.reasons) > 0 {
		p.message += " (" + strings.Join(p.reasons, ", ") + ")"
	}
	if p.generated != "" {
		p.message += "; failed_generation: " + p.generated
	}
	e.Message = c.hidden().clean(p.message)
	return e
}

// refusesReasoning reports whether the request was refused for the reasoning that it sent
// back.
func (p problem) refusesReasoning() bool {
	switch p.status {
	case http.StatusBadRequest:
		return p.code == "invalid_encrypted_content" || reasoningWords.MatchString(p.message)
	case http.StatusNotFound: // OpenAI, of an item that it knows only by its id
		return strings.Contains(p.message, "Items are not persisted")
	}
	return false
}

// Anthropic, and routers to it, which have no code; OpenAI behind a router.
var reasoningWords = regexp.MustCompile(`(?is)signature.*thinking|thinking.*(signature|cannot be modified)|encrypted content.*could not be verified`)

// StatesError reports whether data states an error, in any of the forms in which APIs do
// that with a status of success: in a stream, or in a list.
func StatesError(data []byte) bool {
	if text(data) != "" {
		return true
	}
	names := func(key string) bool { return bytes.Contains(data, []byte(key)) }
	if !names(`"error"`) && !names(`"base_resp"`) && !names(`"success"`) { // as most chunks of a reply
		return false
	}
	said := object(data)
	switch e := said["error"].(type) {
	case map[string]any:
		return len(e) > 0
	case string:
		return e != ""
	}
	if base, ok := said["base_resp"].(map[string]any); ok { // MiniMax
		code, _ := base["status_code"].(float64)
		return code != 0
	}
	return said["object"] == "error" || said["success"] == false // vLLM, z.ai
}

// text returns what data says if it is nothing but a JSON string.
func text(data []byte) (said string) {
	if data = bytes.TrimSpace(data); len(data) > 0 && data[0] == '"' {
		_ = json.Unmarshal(data, &said) // else it says nothing
	}
	return said
}

// object reads an object, or the first one of a list, as Gemini writes errors.
func object(data []byte) map[string]any {
	var list []map[string]any
	if data = bytes.TrimSpace(data); len(data) > 0 && data[0] == '[' {
		if json.Unmarshal(data, &list) != nil || len(list) == 0 {
			return nil
		}
		return list[0]
	}
	var said map[string]any
	_ = json.Unmarshal(data, &said) // else there are no words
	return said
}

// problem is what a server said about a failure.
type problem struct {
	status                     int
	code, kind, param, message string
	// reasons are why a moderation stopped the request, and generated is what the model wrote
	// and the server could not read.
	reasons   []string
	generated string
	body      []byte
}

// read finds the words in JSON of any of the usual shapes. Anything else, such as
// a proxy's page, is the message as it is.
func read(body []byte, status int) problem {
	p := problem{status: status, body: body}
	if p.message = text(body); p.message != "" {
		return p
	}
	said := object(body)
	for _, key := range []string{"error", "base_resp"} {
		if inner, ok := said[key].(map[string]any); ok {
			said = inner
		}
	}
	p.kind, _ = said["type"].(string)
	if state, ok := said["status"].(string); ok && p.kind == "" { // Gemini
		p.kind = state
	}
	p.param, _ = said["param"].(string)
	p.generated, _ = said["failed_generation"].(string)
	for _, key := range []string{"status_code", "code"} {
		p.numbered(said[key])
	}
	metadata, _ := said["metadata"].(map[string]any) // OpenRouter
	reasons, _ := metadata["reasons"].([]any)
	for _, reason := range reasons {
		p.reasons = append(p.reasons, fmt.Sprint(reason))
	}
	for _, key := range []string{"error", "message", "detail", "msg", "status_msg"} {
		if p.message = words(said[key]); p.message != "" {
			break
		}
	}
	if raw, _ := metadata["raw"].(string); raw != "" && p.message != "" { // the words of the server behind
		p.message += ": " + cmp.Or(inner(raw), raw)
	}
	if p.message != "" {
		return p
	}
	p.message = fmt.Sprintf("HTTP %d %s", p.status, http.StatusText(p.status))
	if text := strings.TrimSpace(string(body)); text != "" {
		p.message += ": " + text
	}
	return p
}

// inner returns the message of an error in an error, or nothing.
func inner(raw string) string {
	if !StatesError([]byte(raw)) {
		return ""
	}
	return read([]byte(raw), http.StatusOK).message
}

// numbered takes a code. In a stream, some servers give the status as the code.
func (p *problem) numbered(code any) {
	if text, ok := code.(string); ok {
		p.code = text
	}
	n, ok := code.(float64)
	if !ok {
		parsed, err := strconv.Atoi(p.code)
		if err != nil {
			return
		}
		n = float64(parsed)
	}
	if p.status < 400 && n >= 400 && n < 600 {
		p.status = int(n)
	}
	if p.code == "" {
		p.code = strconv.Itoa(int(n))
	}
}

func words(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []any:
		var all []string
		for _, one := range v {
			if s, ok := one.(string); ok {
				all = append(all, s)
			}
		}
		return strings.Join(all, ", ")
	}
	return ""
}

// sort gives the problem's kind by what only its words say, then by its status and, where
// that says nothing, by its code or type; with typeFirst the other way round.
func (p problem) sort(typeFirst bool) llm.ErrorKind {
	if kind := p.byWords(); kind != "" {
		return kind
	}
	ways := []llm.ErrorKind{kindOfStatus(p.status), kindOfWord[p.code], kindOfWord[p.kind], llm.KindOther}
	if typeFirst {
		ways[0], ways[2] = ways[2], ways[0]
	}
	return ways[slices.IndexFunc(ways, func(k llm.ErrorKind) bool { return k != "" })]
}

// byWords gives the kind of a problem that its status does not tell.
func (p problem) byWords() llm.ErrorKind {
	switch {
	case p.outOfCredit():
		// Not auth, since the key is good, and no rate limit: it does not pass.
		return llm.KindInvalid
	case p.status == http.StatusUnauthorized || p.status == http.StatusTooManyRequests:
		return ""
	case p.generated != "" || p.is(toolUseCodes) || toolUseWords.MatchString(p.message):
		return llm.KindToolUse
	case p.is(schemaCodes) || strings.HasPrefix(p.param, "response_format") || strings.HasPrefix(p.param, "text.format") ||
		schemaWords.MatchString(p.message):
		return llm.KindSchemaRefused
	case p.tooLong():
		return llm.KindContextTooLong
	case p.status == http.StatusForbidden && (len(p.reasons) > 0 || moderationWords.MatchString(p.message)):
		return llm.KindInvalid
	case keyWords.MatchString(p.message):
		return llm.KindAuth
	}
	return ""
}

// is reports whether the problem's code or type is one of the words.
func (p problem) is(words []string) bool {
	return slices.Contains(words, p.code) || slices.Contains(words, p.kind)
}

// The codes and the words of problems that several APIs state with statuses that say
// something else, or with none.
var (
	toolUseCodes = []string{"tool_use_failed", "output_parse_failed", "json_validate_failed"} // Groq
	// Ollama, llama.cpp
	toolUseWords = regexp.MustCompile(`^error parsing tool call: |[Ff]ailed to parse tool call arguments`)

	schemaCodes = []string{"invalid_json_schema", "invalid_function_parameters"} // OpenAI
	// OpenAI, Groq, Ollama; Anthropic; llama.cpp; vLLM, SGLang; Fireworks; Gemini
	schemaWords = regexp.MustCompile(`(?i)invalid (json )?schema (for|in) |json schema is invalid|json schema conversion failed|grammar error|` +
		`(failed|unable|cannot|could not) to (parse|compile|convert|initialize|build|create)( the)? (json schema|grammar)|` +
		`features not supported by|json schema not supported|schema produces a constraint`)

	tooLongCodes = []string{
		"context_length_exceeded", "string_above_max_length", "exceed_context_size_error", "request_too_large",
		"model_max_prompt_tokens_exceeded",
	}
	// OpenAI, vLLM, Mistral; Anthropic; xAI; Gemini; llama.cpp; Ollama, LM Studio; Moonshot; z.ai;
	// MiniMax; Bedrock; Groq; Together; DashScope
	tooLongWords = regexp.MustCompile(`(?i)maximum context length|prompt (is )?too long|exceed(s|ed)? (the )?(context limit|context window|` +
		`(available |max |maximum )?context (size|length))|maximum prompt length|input token count.* exceeds|(greater|longer) than the context length|` +
		`exceeded model token limit|prompt exceeds max length|context window exceeds limit|input is too long|reduce the length of the messages|` +
		"`inputs` tokens|range of input length should be|prompt token count of .* exceeds")

	moderationWords = regexp.MustCompile(`(?i)flagged|moderation|usage guidelines|content polic`)
	keyWords        = regexp.MustCompile(`(?i)(api key not valid|(incorrect|invalid) api key)`)
)

func kindOfStatus(status int) llm.ErrorKind {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		return llm.KindAuth
	case http.StatusTooManyRequests:
		return llm.KindRateLimited
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, 498: // 498: no capacity
		return llm.KindOverloaded
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return llm.KindInvalid
	}
	switch {
	case status >= 500: // also 529: overloaded
		return llm.KindOverloaded
	case status >= 400:
		return llm.KindInvalid
	}
	return ""
}

// kindOfWord sorts the codes and types of all APIs.
var kindOfWord = map[string]llm.ErrorKind{
	"rate_limit_exceeded": llm.KindRateLimited, "rate_limit_error": llm.KindRateLimited,
	"RESOURCE_EXHAUSTED": llm.KindRateLimited, "1302": llm.KindRateLimited, "1305": llm.KindRateLimited, // Gemini; z.ai
	"tokens": llm.KindRateLimited, "requests": llm.KindRateLimited,
	"server_error": llm.KindOverloaded, "api_error": llm.KindOverloaded, "overloaded": llm.KindOverloaded,
	"overloaded_error": llm.KindOverloaded, "service_unavailable": llm.KindOverloaded,
	"UNAVAILABLE": llm.KindOverloaded, "INTERNAL": llm.KindOverloaded, "DEADLINE_EXCEEDED": llm.KindOverloaded,
	"server_is_overloaded": llm.KindOverloaded, "slow_down": llm.KindOverloaded, "invalid_prompt": llm.KindInvalid,
	"timeout": llm.KindOverloaded, "timeout_error": llm.KindOverloaded,
	"invalid_api_key": llm.KindAuth, "authentication_error": llm.KindAuth, "permission_error": llm.KindAuth,
	"UNAUTHENTICATED": llm.KindAuth, "PERMISSION_DENIED": llm.KindAuth,
	"INVALID_ARGUMENT": llm.KindInvalid, "NOT_FOUND": llm.KindInvalid, "FAILED_PRECONDITION": llm.KindInvalid,
	"invalid_request_error": llm.KindInvalid, "not_found_error": llm.KindInvalid, "model_not_found": llm.KindInvalid,
	"content_filter": llm.KindInvalid, "BadRequestError": llm.KindInvalid,
}

func (p problem) outOfCredit() bool {
	return p.status == http.StatusPaymentRequired || p.is(creditCodes) || creditWords.MatchString(p.message)
}

var (
	creditCodes = []string{
		"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "billing_error", "exceeded_current_quota_error", // Moonshot
	}
	// Anthropic; DeepSeek, z.ai; xAI
	creditWords = regexp.MustCompile(`(?i)credit balance is too low|insufficient balance|(have any|used all available) credits`)
)

func (p problem) tooLong() bool {
	return p.status == http.StatusRequestEntityTooLarge || p.is(tooLongCodes) || tooLongWords.MatchString(p.message)
}

var (
	waitWords = regexp.MustCompile(`(?i)(?:try again|retry) (?:in|after) (.{1,40})|"retryDelay"\s*:\s*"([^"]{1,40})`)
	waitPart  = regexp.MustCompile(`^[\s,]*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]+)`)
)

// unit is one that waits are written in, by its first letters.
type unit struct {
	name string
	time.Duration
}

var units = []unit{{"ms", time.Millisecond}, {"milli", time.Millisecond}, {"s", time.Second}, {"m", time.Minute}, {"h", time.Hour}}

// wait returns how long a server asks in words to be left alone, or 0.
func (p problem) wait() time.Duration {
	const most = 365 * 24 * time.Hour // more is a mistake
	var d time.Duration
	found := waitWords.FindSubmatch(p.body)
	if found == nil {
		return 0
	}
	rest := append(found[1], found[2]...)
	for part := waitPart.FindSubmatch(rest); part != nil; part = waitPart.FindSubmatch(rest) {
		rest = rest[len(part[0]):]
		n, err := strconv.ParseFloat(string(part[1]), 64)
		at := slices.IndexFunc(units, func(u unit) bool { return strings.HasPrefix(strings.ToLower(string(part[2])), u.name) })
		if err != nil || at < 0 || n > most.Seconds() {
			break
		}
		d += time.Duration(n * float64(units[at].Duration))
	}
	if d > most {
		return 0
	}
	return d
}

// maxMessage bounds what an error repeats of a provider's words, in bytes.
const maxMessage = 2048

// secrets are the texts that no error may hold: the key, and the words of headers and of
// the query, which may be keys. The longest come first. Shorter ones than 8 bytes are
// placeholders for a server that wants none ("none", "ollama"), and ordinary words.
type secrets []string

// minSecret is the length of the shortest secret.
const minSecret = 8

func secretsOf(o Options) secrets {
	all := secrets{o.APIKey}
	for _, values := range o.Header {
		all = append(all, strings.Fields(strings.Join(values, " "))...) // such as Bearer, and a key
	}
	for _, value := range o.Query {
		all = append(all, value, url.QueryEscape(value))
	}
	all = slices.DeleteFunc(all, func(s string) bool { return len(s) < minSecret })
	slices.SortFunc(all, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	return all
}

// clean makes a provider's words fit for a log: without secrets, of bounded
// length, valid UTF-8.
func (s secrets) clean(message string) string {
	for _, one := range s {
		message = strings.ReplaceAll(message, one, "[secret]")
	}
	message = strings.ToValidUTF8(message, "\uFFFD")
	if len(message) <= maxMessage {
		return message
	}
	cut := maxMessage
	for !utf8.RuneStart(message[cut]) {
		cut--
	}
	return message[:cut] + "…"
}

// harmless returns err as a cause, or nil if its text holds a secret.
func (s secrets) harmless(err error) error {
	text := err.Error()
	if slices.ContainsFunc(s, func(one string) bool { return strings.Contains(text, one) }) {
		return nil
	}
	return err
}
