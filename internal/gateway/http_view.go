package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/moorebus/moorebus/internal/runlog"
)

// wish is what a reader wants of a run's events: those from a number on, and
// before them the state that they begin with.
type wish struct {
	from uint64
	// given says that the reader named where to begin.
	given bool
	state bool
}

// readWish reads from and view.
func readWish(r *http.Request) (wish, error) {
	values, err := parameters(r, "from", "view")
	if err != nil {
		return wish{}, err
	}
	var want wish
	if want.from, err = number(values, "from", 1); err != nil {
		return wish{}, err
	}
	_, want.given = values["from"]
	view, there := values["view"]
	if there && view != "state" {
		return wish{}, badRequest(CodeBadParameter, "view: %.100q is not a view; there is: state", view)
	}
	want.state = there
	return want, nil
}

// resume goes on behind an event that the reader has. It has the state as well,
// then: the events change it.
func (w *wish) resume(n uint64) { w.from, w.given, w.state = n+1, true, false }

// stateBefore returns the state that the wanted events begin with, nil if it is not
// wanted. Where the reader named no event they begin behind the head.
func (g *Gateway) stateBefore(ctx context.Context, ns, id string, want *wish) ([]byte, error) {
	if !want.state {
		return nil, nil
	}
	var state RunState
	var err error
	switch {
	case !want.given:
		if state, err = g.State(ctx, ns, id, 0); err == nil {
			want.from = state.N + 1
		}
	case want.from <= 1:
		err = g.look(ctx, ns, id, func(run *runlog.Run) (err error) {
			state, err = runState(g.machine.Initial(run.ID.ID))
			return err
		})
	default:
		state, err = g.State(ctx, ns, id, want.from-1)
		var refused *Error
		if errors.As(err, &refused) && refused.Code == CodeBadParameter {
			err = badRequest(CodeBadParameter, "from: the run has no state before event %d yet", want.from)
		}
	}
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(state)
	if err != nil {
		return nil, fmt.Errorf("%w: state of run %s: %w", errInternal, id, err)
	}
	return data, nil
}

// state sends the state that the events from a number on begin with; nil is none.
func (s *stream) state(data []byte, from uint64) error {
	if data == nil {
		return nil
	}
	return s.event("state", strconv.FormatUint(max(from, 1)-1, 10), data)
}
