package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// stage is where conversations are played: a gateway, and behind it planners
// that ask the model server and actors that ask the tool server.
type stage struct {
	api   *api
	model *modelServer
	tools *toolServer
	names []string // of the tools, sorted
	// limit bounds one conversation.
	limit time.Duration
	// gentle says that what happens meanwhile is no reason to repeat anything.
	gentle bool
	// seen, if not nil, is called with every event of every conversation.
	seen func(*event)
}

func (c *cluster) stage() *stage {
	return &stage{api: c.api, model: c.model, tools: c.tools, names: c.setup.tools, limit: 2 * time.Minute}
}

// play runs all conversations at once and fails the test if one does not end as
// recorded. Nothing may be asked or executed twice, unless something that is not
// gentle happens meanwhile.
func (s *stage) play(t *testing.T, all []*conversation, meanwhile func()) []*playback {
	t.Helper()
	var played []*playback
	for _, c := range all {
		played = append(played, &playback{
			conversation: c, run: newRunID(), model: "recorded-" + newRunID(), tools: s.names,
			asked: map[int]int{}, executed: map[string]int{}, answers: map[string]exchange{},
		})
	}
	var wait sync.WaitGroup
	for _, p := range played {
		wait.Go(func() {
			err := s.converse(t.Context(), p)
			if err = errors.Join(err, p.verify(meanwhile == nil || s.gentle)); err != nil {
				t.Errorf("%s, run %s: %v", p.name, p.run, err)
			}
		})
	}
	if meanwhile != nil {
		meanwhile()
	}
	wait.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return played
}

// converse plays the user of one conversation to its end.
func (s *stage) converse(ctx context.Context, p *playback) error {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	s.model.play(p.model, p)
	s.tools.play(p)
	definition := agent{
		Name: "recorded", SystemPrompt: p.system, Mode: "chat", LLM: map[string]any{"provider": "openai"},
		Models: map[string]string{"default": p.model}, Tools: s.names,
		Config: map[string]any{"max_steps": 1000, "context_window_size": 0, "reflect_every_n_steps": 0},
	}
	if err := s.api.start(ctx, runRequest{Agent: definition, Task: p.task(), Mode: "chat", RunID: p.run}); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	turn := 0
	end, err := s.api.follow(ctx, p.run, func(e *event) error {
		if s.seen != nil {
			s.seen(e)
		}
		if e.Type != "LlmMessageComplete" {
			return nil
		}
		said := p.afterTurn(turn)
		turn++
		if len(said) == 0 {
			return s.api.closeRun(ctx, p.run)
		}
		return s.api.say(ctx, p.run, turn, said)
	})
	if err != nil {
		return err
	}
	if end.Type != "Closed" {
		return fmt.Errorf("the run ended with %s: %s", end.Type, end.Data)
	}
	view, err := s.api.view(ctx, p.run)
	if err != nil {
		return err
	}
	return p.remembered(view, end.N)
}

// remembered compares memory with the entire conversation.
func (p *playback) remembered(v *runView, n uint64) error {
	if v.State != "done" || v.N != n || v.RunID != p.run || v.Mode != "chat" {
		return fmt.Errorf("the run is %s at event %d in mode %s, want done at %d in mode chat", v.State, v.N, v.Mode, n)
	}
	var want, got []string
	for i := range p.messages {
		m := &p.messages[i]
		if m.Role == "user" || m.Role == "assistant" && m.text() != "" {
			want = append(want, m.Role+": "+m.text())
		}
	}
	for _, m := range v.Memory.Messages {
		got = append(got, m.Role+": "+m.Content)
	}
	errs := []error{difference("messages", want, got)}
	if v.Memory.Task != p.task() {
		errs = append(errs, fmt.Errorf("the task is %q, want %q", v.Memory.Task, p.task()))
	}
	return errors.Join(append(errs, p.rememberedCalls(&v.Memory))...)
}

// rememberedCalls compares the history and the calls with their results. The
// calls of one reply stand in the history in the order of their results.
func (p *playback) rememberedCalls(m *memory) error {
	exchanges := p.exchanges()
	if len(m.History) != len(exchanges) || len(m.ToolCalls) != len(exchanges) {
		return fmt.Errorf("history has %d entries and tool_calls %d, want %d", len(m.History), len(m.ToolCalls), len(exchanges))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	reply := 0
	for i := range m.History {
		h := &m.History[i]
		x := p.answers[h.Tool.ID]
		if x.reply < reply {
			errs = append(errs, fmt.Errorf("history[%d], %s, comes too late", i, x))
		}
		reply = x.reply
		if err := p.committed(h, m.ToolCalls[h.Tool.ID]); err != nil {
			errs = append(errs, fmt.Errorf("history[%d]: %w", i, err))
		}
	}
	return errors.Join(errs...)
}

// committed compares one call's entry and record with the recorded exchange.
func (p *playback) committed(h *historyEntry, record callRecord) error {
	x, known := p.answers[h.Tool.ID]
	success := x.result.Status == 0
	told := h.Observation
	if success {
		told = strings.TrimPrefix(told, "SUCCESS: ")
	}
	asked := x.call.Function
	switch {
	case !known:
		return fmt.Errorf("%+v was never executed", *h)
	case h.Tool.Name != asked.Name || h.Tool.Arguments != asked.Arguments || h.Success != success || h.Code == "" || !x.result.told(told):
		return fmt.Errorf("%+v, recorded %s", *h, x)
	case record.Name != asked.Name || record.Parameters != asked.Arguments || record.Result == nil:
		return fmt.Errorf("its record is %+v, recorded %s", record, x)
	case success && (record.Result.Success == nil || record.Result.Success.Content != x.result.text()),
		!success && (record.Result.Failed == nil || !x.result.told(record.Result.Failed.Error)):
		return fmt.Errorf("its record has another result than recorded: %s", x)
	}
	return nil
}

// difference names the first place where two lists differ.
func difference(what string, want, got []string) error {
	for i := range max(len(want), len(got)) {
		switch {
		case i >= len(got):
			return fmt.Errorf("%s: %d are missing, the first: %q", what, len(want)-i, want[i])
		case i >= len(want):
			return fmt.Errorf("%s: %d too many, the first: %q", what, len(got)-i, got[i])
		case want[i] != got[i]:
			return fmt.Errorf("%s[%d] is %q, want %q", what, i, got[i], want[i])
		}
	}
	return nil
}

// script is a player whose k-th reply is its k-th entry.
type script []modelReply

func (s script) reply(r *chatRequest) (modelReply, error) {
	k := r.replies()
	if k >= len(s) {
		return modelReply{}, fmt.Errorf("the script has %d replies, asked for %d", len(s), k+1)
	}
	return s[k], nil
}

// finish follows a run that needs nobody to its end and returns that and what is
// remembered.
func (s *stage) finish(t *testing.T, run string) (*event, *runView) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), s.limit)
	defer cancel()
	end, err := s.api.follow(ctx, run, nil)
	require.NoError(t, err)
	view, err := s.api.view(ctx, run)
	require.NoError(t, err)
	return end, view
}

// begin starts a run in task mode that a script answers.
func (s *stage) begin(t *testing.T, p player, tools ...string) string {
	t.Helper()
	return s.beginAgent(t, agent{Mode: "task", Tools: tools}, p)
}

// beginAgent starts a run of an agent whose model is p.
func (s *stage) beginAgent(t *testing.T, definition agent, p player) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), s.limit)
	defer cancel()
	run := newRunID()
	s.model.play("scripted-"+run, p)
	definition.Name = "scripted"
	if definition.LLM == nil {
		definition.LLM = map[string]any{"provider": "openai"}
	}
	definition.Models = map[string]string{"default": "scripted-" + run}
	require.NoError(t, s.api.start(ctx, runRequest{Agent: definition, Task: "Do as you are told.", RunID: run}))
	return run
}

// says is a reply of text, asks one with a call.
func says(text string) modelReply { return modelReply{content: &text} }

func asks(id, tool, arguments string) modelReply {
	return modelReply{calls: []call{{ID: id, Type: "function", Function: function{Name: tool, Arguments: arguments}}}}
}
