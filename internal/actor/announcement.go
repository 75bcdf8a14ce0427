package actor

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"

	"github.com/moorebus/moorebus/pkg/events"
)

// sized is a tool and its size in an announcement, in bytes.
type sized struct {
	index int
	size  int
}

// fit returns the tools that fit into one announcement of at most so many bytes, and the
// names of the others. Tools without a source are never left out. Of the others it leaves
// out the largest of the source that takes the most, so that one source cannot crowd out
// small ones.
func fit(specs []events.ToolSpec, source func(name string) string, most int) (kept []events.ToolSpec, left []string) {
	total := len("[]")
	takes := map[string]int{}
	of := map[string][]sized{}
	for i, spec := range specs {
		size := encodedSize(spec) + len(",")
		total += size
		if from := source(spec.Name); from != "" {
			takes[from] += size
			of[from] = append(of[from], sized{i, size})
		}
	}
	if total <= most {
		return specs, nil
	}
	for _, tools := range of {
		slices.SortStableFunc(tools, func(a, b sized) int { return cmp.Compare(a.size, b.size) })
	}
	out := map[int]bool{}
	for total > most && len(of) > 0 {
		from := greediest(takes)
		last := of[from][len(of[from])-1]
		of[from] = of[from][:len(of[from])-1]
		out[last.index] = true
		total, takes[from] = total-last.size, takes[from]-last.size
		if len(of[from]) == 0 {
			delete(of, from)
			delete(takes, from)
		}
	}
	for i, spec := range specs {
		if out[i] {
			left = append(left, spec.Name)
		} else {
			kept = append(kept, spec)
		}
	}
	return kept, left
}

// greediest returns the source that takes the most; of several the first by name.
func greediest(takes map[string]int) (most string) {
	for from, size := range takes {
		if most == "" || size > takes[most] || size == takes[most] && from < most {
			most = from
		}
	}
	return most
}

// encodedSize returns the length of a tool as JSON, without the escapes of HTML, as the
// directory stores it.
func encodedSize(spec events.ToolSpec) int {
	var data bytes.Buffer
	enc := json.NewEncoder(&data)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(spec); err != nil {
		return 0 // the announcement fails with the reason
	}
	return data.Len()
}

// maxSaid bounds how many left-out tools the log names.
const maxSaid = 20

// sayLeft logs what a pool's announcement leaves out, if that has changed.
func (a *Actor) sayLeft(pool string, left []string) {
	a.saying.Lock()
	defer a.saying.Unlock()
	if slices.Equal(a.left[pool], left) {
		return
	}
	a.left[pool] = left
	if len(left) > 0 {
		a.cfg.Logger.Warn("not all tools of a pool fit into its announcement: agents do not find the others; give a server fewer tools, or a pool of its own",
			"pool", pool, "left_out", len(left), "tools", left[:min(len(left), maxSaid)])
	}
}
