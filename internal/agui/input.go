package agui

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"mime"
	"path"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/codec"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Input is a request of the protocol, RunAgentInput. Other keys are ignored.
type Input struct {
	ThreadID string            `json:"threadId"`
	RunID    string            `json:"runId"`
	State    json.RawMessage   `json:"state,omitempty"`
	Messages []json.RawMessage `json:"messages"`
	Tools    []Tool            `json:"tools,omitempty"`
	Context  json.RawMessage   `json:"context,omitempty"`
	Resume   []Resume          `json:"resume,omitempty"`
	// ForwardedProps may have the labels of the run that the request starts. The rest is ignored.
	ForwardedProps json.RawMessage `json:"forwardedProps,omitempty"`
}

// Tool is a tool of the client.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
}

// Resume answers an interrupt. Payload is the body of a decision, or a plain value, see [answer].
type Resume struct {
	InterruptID string          `json:"interruptId"`
	Status      string          `json:"status"`
	Payload     json.RawMessage `json:"payload,omitempty"`
}

// message is a message of the client.
type message struct {
	ID         string          `json:"id"`
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"`
	ToolCallID string          `json:"toolCallId"`
	Error      string          `json:"error"`

	raw   json.RawMessage
	text  string
	parts []events.Part
}

// request is an input that was read.
type request struct {
	Input
	labels   events.Labels
	messages []message
	tools    string // their digest
	answers  []answer
}

// maxThread is the longest id of a thread or a turn, in bytes.
const maxThread = 1024

// parse reads a request. The error is a refusal.
func parse(data []byte) (*request, error) {
	var in request
	if !utf8.Valid(data) {
		return nil, route.BadRequest("the body is not valid UTF-8")
	}
	if err := json.Unmarshal(data, &in.Input); err != nil {
		return nil, route.BadRequest("the body is no RunAgentInput: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if err := strict.CheckDepth(data); err != nil {
		return nil, route.BadRequest("%s", err.Error())
	}
	switch {
	case in.ThreadID == "" || len(in.ThreadID) > maxThread:
		return nil, route.BadRequest("threadId: must have 1 to %d bytes", maxThread)
	case in.RunID == "" || len(in.RunID) > maxThread:
		return nil, route.BadRequest("runId: must have 1 to %d bytes", maxThread)
	case in.Messages == nil:
		return nil, route.BadRequest("messages: is missing")
	}
	for i, raw := range in.Messages {
		m, err := parseMessage(raw)
		if err != nil {
			return nil, route.BadRequest("messages[%d]: %s", i, err.Error())
		}
		in.messages = append(in.messages, m)
	}
	if err := in.digestTools(); err != nil {
		return nil, err
	}
	if bytes.HasPrefix(bytes.TrimSpace(in.ForwardedProps), []byte("{")) {
		var props struct {
			Labels events.Labels `json:"labels"`
		}
		if err := json.Unmarshal(in.ForwardedProps, &props); err != nil {
			return nil, route.BadRequest("forwardedProps: %s", err.Error())
		}
		in.labels = props.Labels
	}
	for i, r := range in.Resume {
		a, err := r.read()
		if err != nil {
			return nil, refusal.New(refusal.Invalid, refusal.CodeBadDecision, "resume[%d]: %s", i, err.Error())
		}
		in.answers = append(in.answers, a)
	}
	return &in, nil
}

func parseMessage(raw json.RawMessage) (m message, err error) {
	m.raw = raw
	if err := json.Unmarshal(raw, &m); err != nil {
		return m, fmt.Errorf("is no message: %s", err.Error())
	}
	switch {
	case m.Role == roleUser && (m.ID == "" || len(m.ID) > control.MaxMessageID):
		return m, fmt.Errorf("id: must have 1 to %d bytes", control.MaxMessageID)
	case m.Role == roleTool && m.ToolCallID == "":
		return m, fmt.Errorf("toolCallId: is missing")
	case m.Role == roleUser || m.Role == roleTool:
		m.text, m.parts, err = content(m.Content)
	}
	return m, err
}

// content reads text, or parts.
func content(raw json.RawMessage) (string, []events.Part, error) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text, nil, nil
	}
	var items []struct {
		Type, Text string
		Source     struct {
			Type, Value, MimeType string
		}
	}
	if err := json.Unmarshal(raw, &items); err != nil {
		return "", nil, fmt.Errorf("content: is neither text nor a list of parts")
	}
	var parts []events.Part
	for i, item := range items {
		part := events.Part{Type: events.PartFile, MediaType: item.Source.MimeType}
		switch item.Type {
		case "text":
			if item.Text == "" {
				continue
			}
			part = events.Part{Type: events.PartText, Text: item.Text}
		case "image":
			part.Type, part.MediaType = events.PartImage, cmp.Or(part.MediaType, mime.TypeByExtension(path.Ext(item.Source.Value)), "image/png")
		case "audio", "video", "document":
			part.MediaType = cmp.Or(part.MediaType, "application/octet-stream")
		default:
			return "", nil, fmt.Errorf("content[%d]: type %.100q is not known; use text, image, audio, video or document", i, item.Type)
		}
		switch {
		case part.Type == events.PartText:
		case item.Source.Type == "url":
			part.URL = item.Source.Value
		case item.Source.Type == "data":
			data, err := base64.StdEncoding.DecodeString(item.Source.Value)
			if err != nil {
				return "", nil, fmt.Errorf("content[%d]: source.value: is not base64", i)
			}
			part.Data = data
		default:
			return "", nil, fmt.Errorf("content[%d]: source.type %.100q is not known here; use data or url", i, item.Source.Type)
		}
		parts = append(parts, part)
	}
	if len(parts) == 1 && parts[0].Type == events.PartText {
		return parts[0].Text, nil, nil
	}
	return "", parts, nil
}

// digestTools sorts the tools and makes their digest.
func (in *request) digestTools() error {
	slices.SortStableFunc(in.Tools, func(a, b Tool) int { return cmp.Compare(a.Name, b.Name) })
	for i := range in.Tools {
		t := &in.Tools[i]
		if t.Name == "" {
			return route.BadRequest("tools: a tool has no name")
		}
		if p := bytes.TrimSpace(t.Parameters); len(p) == 0 || string(p) == "null" {
			t.Parameters = json.RawMessage(`{"type":"object"}`)
		}
	}
	type sorted struct {
		Tool
		Parameters any `json:"parameters"` // keys of objects are written in order
	}
	all := make([]sorted, len(in.Tools))
	for i, t := range in.Tools {
		all[i].Tool = t
		if err := codec.Strict(t.Parameters, &all[i].Parameters); err != nil {
			return route.BadRequest("tools: %.100q: parameters: %s", t.Name, err.Error())
		}
	}
	text, err := json.Marshal(all)
	in.tools = events.Hash(text)
	return err
}

// clientTools returns the tools as a run pins them.
func (in *request) clientTools() []events.ClientTool {
	var all []events.ClientTool
	for _, t := range in.Tools {
		all = append(all, events.ClientTool{Name: t.Name, Description: cmp.Or(t.Description, t.Name), Schema: t.Parameters})
	}
	return all
}

// memoryKeys are the keys of the state that clients are shown.
var memoryKeys = func() map[string]bool {
	keys := map[string]bool{}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[reducer.Memory]()) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		keys[name] = true
	}
	return keys
}()

// kept returns the client's state to store. A client without its own state sends back the one that
// it was shown: only what the client put there is stored.
func (in *request) kept() json.RawMessage {
	var shown map[string]json.RawMessage
	if json.Unmarshal(in.State, &shown) != nil || shown["run_id"] == nil || shown["custom"] == nil {
		return notNull(in.State)
	}
	var custom map[string]turn
	if json.Unmarshal(shown["custom"], &custom) != nil {
		return notNull(in.State)
	}
	before, ours := custom[customKey]
	if !ours {
		return notNull(in.State)
	}
	own := map[string]json.RawMessage{}
	for key, value := range shown {
		if !memoryKeys[key] {
			own[key] = value
		}
	}
	if len(own) == 0 {
		return notNull(before.State)
	}
	var state map[string]json.RawMessage
	_ = json.Unmarshal(before.State, &state) // what is no object is replaced
	for key, value := range state {
		if own[key] == nil {
			own[key] = value
		}
	}
	text, err := json.Marshal(own)
	if err != nil {
		return notNull(in.State)
	}
	return text
}

func notNull(raw json.RawMessage) json.RawMessage {
	if string(raw) == "null" {
		return nil
	}
	return raw
}
