package reducer

import "slices"

// derived is what requests to the model are made of, as far as it was made before. It goes
// with the next event whose row does not say that it only adds to the conversation.
type derived struct {
	// shown is a *shown of the caller's own kind of message.
	shown any
	// results are those of the first calls of [Control.CallOrder], of which calls were read.
	results []string
	calls   int
}

// shown is the beginning of a view: the messages of the first turns, which no added turn or
// result changes.
type shown[M any] struct {
	messages []M
	// turns is how many turns they show, counted how many of those the context window counts.
	turns, counted int
}

// Messages returns what [View] shows, with every message in the form that convert gives it.
// The memory keeps what was converted, so a longer run costs no more than what was added to
// it, as long as the context window shows the entire conversation. The slice must not be
// changed. It is that of this moment: later calls do not change it.
func Messages[M any](mem *Memory, convert func(*ViewMessage) M) []M {
	s, _ := mem.derived.shown.(*shown[M])
	if s == nil {
		s = &shown[M]{}
	}
	turns := mem.Control.Turns
	counted := s.counted
	for i := range turns[s.turns:] {
		if mem.counts(&turns[s.turns+i]) {
			counted++
		}
	}
	if !mem.showsAll(counted, s.turns == 0) {
		mem.derived.shown = nil
		return converted(nil, View(nil, mem), convert)
	}
	mem.derived.shown = s
	if len(s.messages) == 0 && mem.SystemPrompt != "" {
		system := ViewMessage{Role: "system", Content: mem.SystemPrompt}
		s.messages = append(make([]M, 0, 2*len(turns)+8), convert(&system))
	}
	var room [4]ViewMessage
	for ; s.turns < len(turns) && mem.settled(&turns[s.turns]); s.turns++ {
		s.messages = converted(s.messages, mem.appendTurn(room[:0], turns[s.turns]), convert)
		if mem.counts(&turns[s.turns]) {
			s.counted++
		}
	}
	all := slices.Clip(s.messages) // what is appended here goes into its own slice
	for _, t := range turns[s.turns:] {
		all = converted(all, mem.appendTurn(room[:0], t), convert)
	}
	return all
}

func converted[M any](to []M, view []ViewMessage, convert func(*ViewMessage) M) []M {
	to = slices.Grow(to, len(view))
	for i := range view {
		to = append(to, convert(&view[i]))
	}
	return to
}

// showsAll reports whether the view is the system prompt and then the turns in their order,
// of which the window counts that many. What is shown in addition to the window is looked
// for only at the beginning: events that add to the conversation bring none.
func (mem *Memory) showsAll(counted int, beginning bool) bool {
	r := mem.ReactContext
	if r == nil {
		return true
	}
	if size := r.ContextWindowSize; size > 0 && counted >= size || len(r.Edits) > 0 {
		return false
	}
	return !beginning || len(mem.appendLoaded(nil, mem.Control.Turns)) == 0
}

// settled reports whether a turn is complete and all of its calls are answered, so that its
// messages stay as they are.
func (mem *Memory) settled(t *Turn) bool {
	if t.Part {
		return false
	}
	for _, id := range t.Calls {
		if _, _, ok := mem.answered(id); !ok {
			return false
		}
	}
	return true
}

// Results returns the raw results of the run's calls, in the order of the calls. The slice
// must not be changed. It is that of this moment: later calls do not change it.
func (mem *Memory) Results() []string {
	d, order := &mem.derived, mem.Control.CallOrder
	result := func(id string) (text string, answered, pending bool) {
		record := mem.ToolCalls[id]
		if record == nil {
			return "", false, false // one of Moorebus' own tools
		}
		return record.Result.Text(), record.Result != nil, record.Result == nil
	}
	for ; d.calls < len(order); d.calls++ {
		text, answered, pending := result(order[d.calls])
		if pending {
			break
		}
		if answered {
			d.results = append(d.results, text)
		}
	}
	all := slices.Clip(d.results)
	for _, id := range order[d.calls:] {
		if text, answered, _ := result(id); answered {
			all = append(all, text)
		}
	}
	return all
}
