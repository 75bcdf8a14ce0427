package worker

import (
	"context"
	"time"

	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/runlog"
)

// What happens when a process dies after its append follows from three things:
//
//   - The delivery that it worked on has no verdict, so another worker gets it and reads on.
//   - If the event wakes a state, its own delivery does what is due there.
//   - If it wakes nobody, since this process follows it up ([Follow]), then an earlier
//     delivery to the same state has no verdict either: this process keeps it. Another
//     worker of the state gets it after the ack wait, and does what is due there. That may be
//     any worker, of any build: to it, the delivery is one like every other.
//
// So a run that works in one process has one delivery to Observing each [runlog.KeepFor], not
// one for each step.

// keep keeps a delivery without a slot, if this process has followed up its event and may
// follow up more of its run. It reports whether it does; the delivery then gets its verdict
// when it is no longer kept.
func (j *delivery) keep(ctx context.Context, held *extender, out *unslotted) bool {
	if len(j.found) > 0 || j.d.Attempt() > 1 || j.borrowed {
		return false
	}
	select {
	case j.w.waiting <- struct{}{}:
	default:
		return false
	}
	most := held.interval()
	j.run.Lock()
	defer j.run.Unlock()
	k, n, id := j.run.Keep(j.d.Record().Seq, most, j.d.Sole)
	started := k != nil && out.start(func() {
		defer func() { <-j.w.waiting }()
		defer j.release(held)
		j.n, j.cause = n, id
		j.conclude(ctx, j.letGo(ctx, k, out.taking))
	})
	if !started {
		<-j.w.waiting
		j.run.LetGo(k)
	}
	return started
}

// letGo waits until the delivery is not kept any longer, and does what is due under it then:
// an event that was not followed up after all.
func (j *delivery) letGo(ctx context.Context, k *runlog.Kept, taking context.Context) error {
	timer := time.NewTimer(k.Left())
	defer timer.Stop()
	select {
	case <-k.Ended:
	case <-timer.C:
	case <-taking.Done():
	}
	j.run.Lock()
	open := j.run.LetGo(k)
	j.found = j.due()
	j.run.Unlock()
	if open {
		// The worker that appended the event tries to find out for that time.
		return retry.After(2*Outage.Budget, nil)
	}
	return j.work(ctx)
}
