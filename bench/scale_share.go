package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go/jetstream"
)

// sharers is how many planners share the work.
const sharers = 3

// scaleShare gives runs to three planners: first with so few slots that all of
// them are busy all the time, then with slots to spare. The log says who did what.
func scaleShare(ctx context.Context, s scaleSettings) ([]figure, error) {
	const hold = 500 * time.Millisecond
	var figures []figure
	for _, c := range []struct {
		name  string
		slots int
	}{
		{"all slots busy", max(2, s.shared/(sharers*8))},
		{"slots to spare", s.shared},
	} {
		uneven, err := shareOnce(ctx, s, hold, c.slots)
		if err != nil {
			return nil, err
		}
		at := fmt.Sprintf("%d runs, %d planners of %d slots, %s", s.shared, sharers, c.slots, c.name)
		figures = append(figures, scaleFigure(at, "farthest share from an even one", "%", 100*uneven).most(10))
	}
	return figures, nil
}

func shareOnce(ctx context.Context, s scaleSettings, hold time.Duration, slots int) (uneven float64, err error) {
	model, err := newEndpoint(hold, 0)
	if err != nil {
		return 0, err
	}
	defer model.close()
	f, err := startFleet(ctx, s.bin, terms{group: true}, natsbus.InitOptions{})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	for range sharers {
		if _, err := f.start("planner", model.env(), "--concurrency", strconv.Itoa(slots)); err != nil {
			return 0, err
		}
	}
	if err := f.awaitPlanners(ctx, sharers); err != nil {
		return 0, err
	}
	if _, err := f.runs(ctx, s.shared, askingAgent(0)); err != nil {
		return 0, err
	}
	if _, err := f.awaitEvents(ctx, uint64(2*s.shared), time.Minute); err != nil {
		return 0, err
	}
	shares := map[string]int{}
	for rec, err := range f.bus.Scan(ctx, 0, journal.Filter{To: events.Done}, 0) {
		if err != nil {
			return 0, err
		}
		who, err := madeBy(rec.Body)
		if err != nil {
			return 0, err
		}
		shares[who]++
	}
	return unevenness(shares, sharers, s.shared)
}

// awaitPlanners waits until so many planners ask for work.
func (f *fleet) awaitPlanners(ctx context.Context, planners int) error {
	js, err := jetstream.New(f.conn)
	if err != nil {
		return err
	}
	consumer, err := js.Consumer(ctx, events.StreamName(0), string(events.Planning))
	if err != nil {
		return err
	}
	return f.processes[len(f.processes)-1].await(ctx, "at work", func() bool {
		info, err := consumer.Info(ctx)
		return err == nil && info.NumWaiting >= planners
	})
}

// unevenness is how far the share farthest from an even one is from that, as a part
// of it. Workers that did nothing are those that are missing.
func unevenness(shares map[string]int, workers, total int) (float64, error) {
	even := float64(total) / float64(workers)
	sum, farthest := 0, 0.0
	for _, n := range shares {
		sum += n
		farthest = max(farthest, math.Abs(float64(n)-even)/even)
	}
	if sum != total {
		return 0, fmt.Errorf("%d of %d runs were answered: %v", sum, total, shares)
	}
	if len(shares) < workers {
		farthest = max(farthest, 1)
	}
	return farthest, nil
}

// actorSteps are the processes that are added, and how many there are then.
var actorSteps = []int{1, 2, 4}

// slowTool is how long the tool of scaleActors takes.
const slowTool = 100 * time.Millisecond

// scaleActors has runs that only call a tool of 100 ms, more than the actors have
// slots for, and counts the events of the same time with one, two and four actors.
func scaleActors(ctx context.Context, s scaleSettings) (figures []figure, err error) {
	tool, err := newEndpoint(slowTool, 0)
	if err != nil {
		return nil, err
	}
	defer tool.close()
	most := actorSteps[len(actorSteps)-1] * s.slots
	f, err := startFleet(ctx, s.bin, terms{group: true}, natsbus.InitOptions{MaxAckPending: 1000 * most})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	file := filepath.Join(f.dir, "tools.yaml")
	if err := os.WriteFile(file, []byte(tool.toolFile()), 0o600); err != nil {
		return nil, err
	}
	if err := f.startRoles([]string{"planner", "observer"}); err != nil {
		return nil, err
	}
	runs := 4 * most
	agent, err := stepsAgent(s.actorCalls(runs), "slow", "{}")
	if err != nil {
		return nil, err
	}
	var one float64
	started := 0
	for _, actors := range actorSteps {
		for ; started < actors; started++ {
			if _, err := f.start("actor", nil, "--tools", file, "--concurrency", strconv.Itoa(s.slots)); err != nil {
				return nil, err
			}
		}
		if actors == 1 {
			if _, err := f.runs(ctx, runs, agent); err != nil {
				return nil, err
			}
		}
		rate, err := f.rate(ctx, tool, int64(actors*s.slots), s.window)
		if err != nil {
			return nil, err
		}
		figures = append(figures, s.actorFigure(actors, rate, &one))
	}
	return figures, nil
}

func (s scaleSettings) actorFigure(actors int, rate float64, one *float64) figure {
	row := scaleFigure(fmt.Sprintf("%d actors of %d slots, tool of %s", actors, s.slots, slowTool), "transitions", "1/s", rate)
	if actors == 1 {
		*one = rate
		return row
	}
	return row.beside(*one*float64(actors), fmt.Sprintf("%d times one actor", actors)).least(0.9)
}

// actorCalls is how many calls each run has to make so that none ends while it is
// measured, with time for actors to join.
func (s scaleSettings) actorCalls(runs int) int {
	calls := 0.0
	for _, actors := range actorSteps {
		calls += float64(actors*s.slots) * (2*s.window + 2*time.Second).Seconds() / slowTool.Seconds()
	}
	return max(2, int(math.Ceil(calls/float64(runs))))
}

// rate waits until so many calls are at work at once, and then counts the log's
// events for a time, per second.
func (f *fleet) rate(ctx context.Context, tool *endpoint, busy int64, window time.Duration) (float64, error) {
	tool.peak.Store(0)
	if err := f.processes[len(f.processes)-1].await(ctx, "busy", func() bool { return tool.peak.Load() >= busy }); err != nil {
		return 0, err
	}
	before, err := f.last(ctx)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if !idle(ctx, window) {
		return 0, ctx.Err()
	}
	after, err := f.last(ctx)
	return float64(after-before) / time.Since(began).Seconds(), err
}

// toolFile is the tool `slow` for an actor.
func (e *endpoint) toolFile() string {
	return strings.Join([]string{
		"tools:", `- {name: slow, description: "Takes its time.", schema: {type: object}, http: {url: "` + e.url + `/tools/slow"}, effect: pure}`, "",
	}, "\n")
}
