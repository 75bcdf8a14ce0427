package planner

import (
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// Servers that cut a prompt without a word, such as Ollama, show it in the usage of the
// reply only: the tokens that they read are their context size, or far fewer than were sent.
const (
	// leastRead is what a server reads at least that cuts a prompt, in tokens. Less is what
	// some servers count that have the rest in a cache.
	leastRead = 256
	// leastSent is the least request, in tokens, of which too little counts as cut.
	leastSent = 2000
)

// noteDropped notes in a reply that is about to be written that the server has read only a
// part of the request.
func (p *Planner) noteDropped(run events.Run, req llm.Request, m llm.Meta, reply events.Payload) {
	f := events.FactsOf(reply)
	if f == nil || m.Usage.Input < leastRead {
		return
	}
	sent := leastTokens(req)
	if !dropped(m.Usage, sent) {
		return
	}
	f.ContextDropped = &events.ContextDropped{Read: m.Usage.Input, Sent: sent}
	p.cfg.Logger.Warn("the server read only a part of the request and dropped the rest of the conversation; give the model a larger context (num_ctx for Ollama) or the agent a smaller context_window_size",
		"run", run.ID, "provider", req.Provider, "model", m.Model, "tokens_read", m.Usage.Input, "tokens_sent_at_least", sent)
}

// dropped reports whether a reply's usage shows that the request was cut. sent is a low
// estimate of its tokens. Tokens read from a cache may count as input or separately.
func dropped(u llm.Usage, sent int) bool {
	switch {
	case sent < leastSent:
		return false
	case u.Input%1024 == 0 && u.Cached == 0 && sent*4 > u.Input*5:
		return true // a context of that size is full
	}
	return (u.Input+u.Cached)*2 < sent
}

// leastTokens is a low estimate of a request's tokens: texts have at most about 4 characters
// a token in every language, and equal characters in a row 16. Images, tools and reasoning
// do not count, since servers render them as they like.
func leastTokens(req llm.Request) int {
	sum := 0
	add := func(text string) {
		var last rune
		equal := 0
		for _, r := range text {
			if r != last {
				last, equal = r, 0
			}
			if equal++; equal <= 4 {
				sum += 4
			} else {
				sum++
			}
		}
	}
	for i := range req.Messages {
		m := &req.Messages[i]
		add(m.Content)
		for _, c := range m.Calls {
			add(c.Arguments)
		}
	}
	return sum / 16
}
