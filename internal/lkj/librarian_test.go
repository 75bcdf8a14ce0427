package lkj_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// home is a model server as LKJAgent's users run one: it takes messages of plain
// text, and answers with XML that follows from them alone.
type home struct {
	*httptest.Server
	reply func(prompt string) string

	mu sync.Mutex
	// sizes are the bytes of the bodies that came, in order.
	sizes []int
}

func newHome(t *testing.T, reply func(prompt string) string) *home {
	h := &home{reply: reply}
	h.Server = httptest.NewServer(http.HandlerFunc(h.serve))
	t.Cleanup(h.Close)
	return h
}

func (h *home) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var req struct {
		Tools    json.RawMessage
		Messages []struct{ Role, Content string }
	}
	if err != nil || json.Unmarshal(body, &req) != nil || req.Tools != nil {
		http.Error(w, `{"error":{"message":"this model reads text and knows no tools","type":"invalid_request_error"}}`, http.StatusBadRequest)
		return
	}
	var prompt strings.Builder
	for _, m := range req.Messages {
		prompt.WriteString(m.Content + "\n\n")
	}
	h.mu.Lock()
	h.sizes = append(h.sizes, len(body))
	h.mu.Unlock()
	text, _ := json.Marshal(h.reply(prompt.String()))
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = fmt.Fprintf(w, `data: {"id":"c","model":"home","choices":[{"index":0,"delta":{"content":%s},"finish_reason":"stop"}]}`+
		"\n\ndata: [DONE]\n\n", text)
}

// asked returns the sizes of the requests so far, in bytes.
func (h *home) asked() []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]int(nil), h.sizes...)
}

var (
	stepOf  = regexp.MustCompile(`step (\d+)`)
	entryOf = regexp.MustCompile(`<entry>\s*<tags>(.*?)</tags>`)
)

// malformed are replies that no parser can make sense of.
var malformed = []string{
	"<agent><action><type>working_memory_add<tags>x</tags></action></agent>",
	"I think that I should think.",
	"<agent><action><type>storage_save</type><tags>x</tags><value>never ends",
	"<agent><action><tags>x</tags></action></agent>",
	"<agent></agent>",
}

// librarian is a model that thinks and acts by turns. What it does next stands in
// its thinking log and in working memory, so it has to see both.
func librarian(prompt string) string {
	_, memory, _ := strings.Cut(prompt, "<memory>\n<state>")
	step := 0
	if all := stepOf.FindAllStringSubmatch(memory[strings.Index(memory, "<thinking_log>"):], -1); all != nil {
		step, _ = strconv.Atoi(all[len(all)-1][1])
	}
	if strings.HasPrefix(memory, "executing") {
		return "<agent>\n<action>\n" + act(step, prompt, memory) + "</action>\n</agent>"
	}
	step++
	failed := strings.LastIndex(prompt, "ERROR: line ") > strings.LastIndex(prompt, fmt.Sprintf("after %d.", step-1))
	if step%17 == 0 && !failed {
		return malformed[step/17%len(malformed)]
	}
	next := "executing"
	if step%11 == 0 {
		next = "thinking"
	}
	return fmt.Sprintf("<think>Hm.</think><agent><next_state>%s</next_state><thinking_log>step %d: this comes after %d.</thinking_log></agent>", next, step, step-1)
}

// act is the action of a step.
func act(step int, prompt, memory string) string {
	held := entryOf.FindAllStringSubmatch(memory, -1)
	first, last := "", ""
	if len(held) > 0 {
		first, last = held[0][1], held[len(held)-1][1]
	}
	old := fmt.Sprintf("n_%d", step/2)
	own := fmt.Sprintf("item, d_%d, n_%d", step/10, step)
	switch k := step % 10; {
	case k == 2 || k == 9:
		return action("storage_save", own, value(step, "saved"))
	case k == 3:
		return action("storage_load", old, "")
	case k == 4 && strings.Contains(prompt, "Found 1; in working memory now:") && strings.Contains(memory, fmt.Sprintf("n_%d<", (step-1)/2)):
		return action("working_memory_remove", fmt.Sprintf("item, d_%d, n_%d", (step-1)/2/10, (step-1)/2), "")
	case k == 5 && last != "": // storage gets what is newer than working memory
		return action("storage_save", last, value(step, "saved over "+last))
	case k == 6 && first != "": // working memory gets what is newer than storage
		return action("working_memory_add", first, value(step, "added over "+first))
	case k == 7 && step%20 == 7: // and all of a kind comes back
		return action("storage_load", fmt.Sprintf("item, d_%d", step/10-1), "")
	case k == 7 && last != "":
		return action("storage_load", last, "")
	}
	return action("working_memory_add", own, value(step, "added"))
}

// action writes an action; no value is no element.
func action(name, tags, value string) string {
	text := "<type>" + name + "</type>\n<tags>" + tags + "</tags>\n"
	if value != "" {
		text += "<value>" + value + "</value>\n"
	}
	return text
}

// value grows from step to step, and begins again; some are more than all limits
// allow.
func value(step int, what string) string {
	times := 1 + step%30
	if step%41 == 0 {
		times = 200
	}
	return fmt.Sprintf("%s at %d.%s", what, step, strings.Repeat(fmt.Sprintf(" It is %d.", step), times))
}
