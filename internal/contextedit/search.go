package contextedit

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/moorebus/moorebus/internal/callname"
	"github.com/moorebus/moorebus/pkg/reducer"
)

const (
	searchLimit = 20
	// searchArguments and listedID bound what is listed of a call's arguments and id, in
	// bytes.
	searchArguments = 200
	listedID        = 200
	// searchBytes bounds the text that the searches of one reply read in all. leastBytes
	// is the least that a call counts for.
	searchBytes = 16 << 20
	leastBytes  = 64
	// listedBytes bounds what the searches of one reply list in all, in about bytes.
	listedBytes = 256 << 10
)

// history is what searches read: the run's answered calls, newest first, up to a bound for
// one reply. It is searched without the run's lock.
type history struct {
	collected bool
	calls     []pastCall
	// older is how many calls there are besides those, left how much text may still be
	// searched, room how much may still be listed.
	older, left, room int
}

// pastCall is a call with its result.
type pastCall struct {
	id, name, arguments, result string
	success                     bool
}

func (c *pastCall) bytes() int {
	return max(leastBytes, len(c.name)+len(c.arguments)+len(c.result))
}

// collect copies the calls, under the run's lock. Texts are not copied.
func (h *history) collect(mem *reducer.Memory) {
	if h.collected {
		return
	}
	h.collected = true
	order, room := mem.Control.CallOrder, searchBytes
	for i := len(order) - 1; i >= 0; i-- {
		record := mem.ToolCalls[order[i]]
		if record == nil || record.Result == nil {
			continue
		}
		call := pastCall{
			id: order[i], name: record.Name, arguments: record.Parameters,
			result: record.Result.Text(), success: record.Result.Success != nil,
		}
		if room -= call.bytes(); room < 0 {
			h.older = i + 1
			return
		}
		h.calls = append(h.calls, call)
	}
}

// found is a tool call in the answer to a search.
type found struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
	Success   bool   `json:"success"`
}

// search lists the run's answered calls that match, newest first.
func (h *history) search(text string) string {
	in := struct {
		Query, Name string
		Limit       float64
	}{Limit: searchLimit}
	arguments(text, &in)
	query := strings.ToLower(in.Query)
	list := struct {
		Calls []found `json:"calls"`
		// More is how many further calls match, NotSearched how many older calls were not
		// searched.
		More        int `json:"more"`
		NotSearched int `json:"not_searched,omitempty"`
	}{Calls: []found{}, NotSearched: h.older}
	for i := range h.calls {
		call := &h.calls[i]
		if h.left -= call.bytes(); h.left < 0 {
			list.NotSearched += len(h.calls) - i
			break
		}
		switch {
		case in.Name != "" && call.name != in.Name || !call.matches(query):
		case len(list.Calls) >= int(in.Limit) || h.room <= 0:
			list.More++
		default:
			list.Calls = append(list.Calls, found{
				ID: Clip(listedID, call.id), Name: call.name, Arguments: Clip(searchArguments, call.arguments), Success: call.success,
			})
			h.room -= leastBytes + len(call.name) + min(len(call.id), listedID) + min(len(call.arguments), searchArguments)
		}
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(list); err != nil {
		return reducer.ErrorPrefix + "the calls cannot be listed"
	}
	return strings.TrimSpace(out.String())
}

func (c *pastCall) matches(query string) bool {
	return query == "" || strings.Contains(strings.ToLower(c.name+" "+c.arguments), query) ||
		strings.Contains(strings.ToLower(c.result), query)
}

// listed finds the calls that a search lists under ids, in the memory that the search
// read.
type listed struct {
	mem *reducer.Memory
	// cut are the calls whose ids are too long to be listed whole, by the listed part; the
	// newest if several are equal. nil until one is needed.
	cut map[string]string
}

// as returns the call that is listed under an id: the call with that id, or the provider's
// id. If the id was too long to be listed whole, it is the newest call that begins with
// it.
func (l *listed) as(id string) string {
	id = callname.Find(l.mem, id)
	begin, cut := strings.CutSuffix(id, "…")
	if l.mem.ToolCalls[id] != nil || !cut || len(begin) > listedID || len(begin) < listedID-3 {
		return id
	}
	if l.cut == nil {
		l.cut = map[string]string{}
		for _, known := range l.mem.Control.CallOrder {
			if len(known) > listedID && l.mem.ToolCalls[known] != nil {
				l.cut[Clip(listedID, known)] = known
			}
		}
	}
	if known, ok := l.cut[id]; ok {
		return known
	}
	return id
}
