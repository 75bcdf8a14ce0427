package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// playback is one run of a conversation: it answers as the recorded model and
// the recorded tools did, and notes every deviation from the recording.
type playback struct {
	*conversation
	run   string
	model string
	tools []string // what the model is to be offered, sorted

	mu       sync.Mutex
	asked    map[int]int         // how often the k-th reply was asked for
	last     int                 // compact size of the messages of the last request
	executed map[string]int      // how often each call was executed, by its name in the log
	answers  map[string]exchange // what each call in the log is in the recording
	problems []error
}

func (p *playback) note(format string, args ...any) {
	p.problems = append(p.problems, fmt.Errorf("%s: "+format, append([]any{p.name}, args...)...))
}

// reply answers with the recorded message that follows the request's, after
// comparing all of those with the recording.
func (p *playback) reply(r *chatRequest) (modelReply, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := r.replies()
	p.asked[k]++
	at := p.assistant(k)
	if at < 0 {
		p.note("the model was asked for reply %d of %d", k+1, p.replies())
		return modelReply{}, errors.New("the recording is over")
	}
	p.compare(k, r, at)
	if k == p.replies()-1 {
		var compact bytes.Buffer
		_ = json.Compact(&compact, r.Raw) // it was decoded, so it is JSON
		p.last = compact.Len()
	}
	said := p.messages[at]
	return modelReply{content: said.Content, calls: said.ToolCalls}, nil
}

func (p *playback) compare(k int, r *chatRequest, at int) {
	if len(r.Messages) != at {
		p.note("request %d has %d messages, the recorded prefix %d", k+1, len(r.Messages), at)
		return
	}
	for i := range r.Messages {
		if err := equal(&r.Messages[i], &p.messages[i]); err != nil {
			p.note("request %d, message %d: %w", k+1, i, err)
		}
	}
	var offered []string
	for _, t := range r.Tools {
		offered = append(offered, t.Function.Name)
	}
	slices.Sort(offered)
	if !slices.Equal(offered, p.tools) {
		p.note("request %d offers the tools %v, want %v", k+1, offered, p.tools)
	}
}

// equal compares a message that was sent with the recorded one. Of an assistant
// message with calls, no content, null and "" are the same.
func equal(sent, recorded *message) error {
	switch {
	case sent.Role != recorded.Role:
		return fmt.Errorf("the role is %q, recorded %q", sent.Role, recorded.Role)
	case sent.Content == nil && len(recorded.ToolCalls) == 0:
		return fmt.Errorf("the content of role %s is null", sent.Role)
	case sent.ToolCallID != recorded.ToolCallID:
		return fmt.Errorf("tool_call_id is %q, recorded %q", sent.ToolCallID, recorded.ToolCallID)
	case sent.Name != "" && sent.Name != recorded.Name:
		return fmt.Errorf("the name is %q, recorded %q", sent.Name, recorded.Name)
	case !slices.Equal(sent.ToolCalls, recorded.ToolCalls):
		return fmt.Errorf("the calls are %+v, recorded %+v", sent.ToolCalls, recorded.ToolCalls)
	case !recorded.told(sent.text()):
		return fmt.Errorf("the content is %q, recorded %q", sent.text(), recorded.text())
	}
	return nil
}

// told reports whether text is what the model is to be told with this message:
// its content, and for a failed tool's result an error with status and body.
func (m *message) told(text string) bool {
	if m.Status == 0 {
		return text == m.text()
	}
	return strings.HasPrefix(text, "ERROR: ") && strings.Contains(text, strconv.Itoa(m.Status)) && strings.Contains(text, m.text())
}

// execute answers a call by its name in the log: the recorded call of that id
// and those arguments, in order where ids repeat. The same name always gets the
// same answer.
func (p *playback) execute(id, tool, arguments string) (message, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.executed[id]++
	if x, known := p.answers[id]; known {
		return x.result, nil
	}
	taken := map[int]bool{}
	for _, x := range p.answers {
		taken[x.seq] = true
	}
	for _, x := range p.exchanges() {
		if taken[x.seq] || !names(id, x.call.ID) || x.call.Function.Name != tool || x.call.Function.Arguments != arguments {
			continue
		}
		p.answers[id] = x
		return x.result, nil
	}
	p.note("call %s of %s with the arguments %q is not recorded", id, tool, arguments)
	return message{}, fmt.Errorf("no such call is recorded")
}

// names reports whether id is how the log names a call whose id at the provider
// is given: the same, or `<id>~<k>`.
func names(id, provider string) bool {
	suffix, ok := strings.CutPrefix(id, provider)
	return ok && (suffix == "" || strings.HasPrefix(suffix, "~"))
}

// verify returns every deviation: those noted on the way, and what is missing.
// Where processes were killed, requests and executions may be repeated.
func (p *playback) verify(once bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	const enough = 5 // one deviation shows in every request that follows
	errs := slices.Clone(p.problems[:min(enough, len(p.problems))])
	bad := func(n int) bool { return n == 0 || once && n > 1 }
	for k := range p.replies() {
		if n := p.asked[k]; bad(n) {
			errs = append(errs, fmt.Errorf("%s: the model was asked %d times for reply %d", p.name, n, k+1))
		}
	}
	if want := len(p.exchanges()); len(p.executed) != want {
		errs = append(errs, fmt.Errorf("%s: %d calls were executed, %d recorded", p.name, len(p.executed), want))
	}
	for id, n := range p.executed {
		if bad(n) {
			errs = append(errs, fmt.Errorf("%s: call %s was executed %d times", p.name, id, n))
		}
	}
	return errors.Join(errs...)
}
