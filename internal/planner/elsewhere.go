package planner

import (
	"context"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/pkg/events"
)

// answerWait is how long another planner has to answer that it has a run's call in flight.
const answerWait = time.Second

// elsewhere reports whether another planner has a call of the run in flight. It asks as
// late listeners do: the planner that has the call answers on the run's chunks. Without an
// answer no planner has it. If the answer is lost, a call is made and billed twice, and
// one reply counts.
func (p *Planner) elsewhere(ctx context.Context, run events.Run, due []effects.Effect) bool {
	if !slices.ContainsFunc(due, func(e effects.Effect) bool { return e.Kind == effects.KindPlan || e.Kind == effects.KindReflect }) {
		return false
	}
	answered := make(chan struct{}, 1)
	stop, err := p.cfg.Feed.WatchChunks(run, func([]byte) {
		select {
		case answered <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return false // the log takes no outcome either
	}
	defer stop()
	if p.cfg.Feed.AskCatchUp(run) != nil {
		return false
	}
	select {
	case <-answered:
		return true
	case <-time.After(answerWait):
	case <-ctx.Done():
	}
	return false
}
