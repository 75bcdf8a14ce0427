package llmtest

import (
	"encoding/json"
	"net/http"

	"github.com/moorebus/moorebus/pkg/llm"
)

// Responses is the format of OpenAI's Responses API.
type Responses struct{}

// Encrypted is the encrypted content of all reasoning.
const Encrypted = "gAAAAABencrypted"

// Name returns responses.
func (Responses) Name() string { return "responses" }

// Read reads a request for a response. Items of a reply that stand beside each other are
// one.
func (Responses) Read(body []byte) (WireRequest, error) {
	var in struct {
		Stream bool `json:"stream"`
		Input  []struct {
			Type string `json:"type"`
			Role string `json:"role"`
			Name string `json:"name"`
		} `json:"input"`
		Tools []struct {
			Name string `json:"name"`
		} `json:"tools"`
	}
	err := json.Unmarshal(body, &in)
	req := WireRequest{Stream: in.Stream}
	for _, t := range in.Tools {
		req.Tools = append(req.Tools, t.Name)
	}
	req.Names = append(req.Names, req.Tools...)
	replied := false
	for _, i := range in.Input {
		reply := i.Role == "assistant" || i.Type == "function_call" || i.Type == "reasoning"
		if reply && !replied {
			req.Turn++
		}
		replied = reply
		if i.Type == "function_call" {
			req.Names = append(req.Names, i.Name)
		}
	}
	return req, err
}

// Plain returns a response.
func (w Responses) Plain(turn Turn, _ WireRequest) string {
	return encode(w.response(turn, w.items(turn), true))
}

// Events returns the events of a response: each item with its beginning, its fragments and
// its end, and the entire response as the last one.
func (w Responses) Events(turn Turn, _ WireRequest) []string {
	text, calls := content(turn.Reply)
	items := w.items(turn)
	var out []string
	send := func(kind string, e object) {
		e["type"], e["sequence_number"] = kind, len(out)
		out = append(out, "event: "+kind+"\ndata: "+encode(e)+"\n\n")
	}
	send("response.created", object{"response": w.response(turn, []any{}, false)})
	send("response.in_progress", object{"response": w.response(turn, []any{}, false)})
	var texts []string
	var tell []func(s string)
	for i, one := range items {
		it := one.(object)
		started := object{"type": it["type"], "id": it["id"], "status": "in_progress"}
		fragment := func(kind string, more object) func(string) {
			return func(s string) {
				e := object{"item_id": it["id"], "output_index": i, "delta": s}
				for k, v := range more {
					e[k] = v
				}
				send(kind, e)
			}
		}
		switch it["type"] {
		case "reasoning":
			started["summary"] = []any{}
			texts, tell = append(texts, turn.Thinking), append(tell, fragment("response.reasoning_summary_text.delta", object{"summary_index": 0}))
		case "message":
			started["role"], started["content"] = "assistant", []any{}
			kind := "response.output_text.delta"
			if turn.Finish == Refused {
				kind = "response.refusal.delta"
			}
			texts, tell = append(texts, text), append(tell, fragment(kind, object{"content_index": 0}))
		case "function_call":
			c := calls[len(calls)-(len(items)-i)]
			started["call_id"], started["name"], started["arguments"] = c.ID, c.Name, ""
			texts, tell = append(texts, c.Arguments), append(tell, fragment("response.function_call_arguments.delta", nil))
		}
		send("response.output_item.added", object{"output_index": i, "item": started})
	}
	turnsOf(texts, func(i int, s string) { tell[i](s) })
	for i, it := range items {
		send("response.output_item.done", object{"output_index": i, "item": it})
	}
	last := w.response(turn, items, true)
	send("response."+last["status"].(string), object{"response": last})
	return out
}

// After is 0: nothing comes after the response.
func (Responses) After() int { return 0 }

// Quiet returns a comment, and an event that is not known.
func (Responses) Quiet() []string {
	return []string{": keep-alive\n\n", "event: keepalive\ndata: {\"type\":\"keepalive\",\"sequence_number\":3}\n\n"}
}

// Error returns an error of the API.
func (Responses) Error(e *llm.Error) (status int, body, event string) {
	status, body, _ = OpenAI{}.Error(e)
	var in struct {
		Error object `json:"error"`
	}
	if err := json.Unmarshal([]byte(body), &in); err != nil {
		panic("an error does not unmarshal: " + err.Error())
	}
	code := in.Error["code"]
	if status == http.StatusServiceUnavailable {
		code = "server_error"
	}
	return status, body, "event: error\ndata: " + encode(object{"type": "error", "code": code, "message": e.Message, "param": nil, "sequence_number": 1}) + "\n\n"
}

// items are the items of a reply: reasoning, text and calls.
func (Responses) items(turn Turn) []any {
	text, calls := content(turn.Reply)
	items := []any{}
	if turn.Thinking != "" {
		items = append(items, object{
			"type": "reasoning", "id": "rs_1", "encrypted_content": Encrypted,
			"summary": []any{object{"type": "summary_text", "text": turn.Thinking}},
		})
	}
	if text != "" || len(calls) == 0 {
		part := object{"type": "output_text", "text": text, "annotations": []any{}}
		if turn.Finish == Refused {
			part = object{"type": "refusal", "refusal": text}
		}
		items = append(items, object{"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": []any{part}})
	}
	for _, c := range calls {
		items = append(items, object{
			"type": "function_call", "id": "fc_" + c.ID, "call_id": c.ID, "name": c.Name, "arguments": c.Arguments, "status": "completed",
		})
	}
	return items
}

// response is the response with the items, at its beginning or whole.
func (Responses) response(turn Turn, items []any, whole bool) object {
	about := turn.Reply.About()
	r := object{
		"id": "resp_1", "object": "response", "created_at": 1, "model": about.Model, "output": items,
		"status": "in_progress", "error": nil, "incomplete_details": nil, "usage": nil,
	}
	if !whole {
		return r
	}
	r["status"] = "completed"
	switch turn.Finish {
	case Cut:
		r["status"], r["incomplete_details"] = "incomplete", object{"reason": "max_output_tokens"}
	case Filtered:
		r["status"], r["incomplete_details"] = "incomplete", object{"reason": "content_filter"}
	}
	if u := about.Usage; u != (llm.Usage{}) {
		r["usage"] = object{
			"input_tokens": u.Input, "output_tokens": u.Output, "total_tokens": u.Total,
			"input_tokens_details": object{"cached_tokens": u.Cached}, "output_tokens_details": object{"reasoning_tokens": 0},
		}
	}
	return r
}
