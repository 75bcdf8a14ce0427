package events

// AllCalls returns every call of the reply in the model's own order: accepted
// ones, those that wait for their turn, and refused ones at their places.
func (r *ToolCallReply) AllCalls() []Call {
	total := len(r.Calls) + len(r.Queued) + len(r.Refused)
	at := make(map[int]Call, len(r.Refused))
	var late []Call
	for _, refused := range r.Refused {
		if _, taken := at[refused.Place]; taken || refused.Place < 1 || refused.Place > total {
			late = append(late, refused.Call) // a writer that did not count
		} else {
			at[refused.Place] = refused.Call
		}
	}
	rest := make([]Call, 0, total)
	rest = append(append(append(rest, r.Calls...), r.Queued...), late...)
	all := make([]Call, 0, total)
	for i := range total {
		if call, refused := at[i+1]; refused {
			all = append(all, call)
		} else {
			all, rest = append(all, rest[0]), rest[1:]
		}
	}
	return all
}
