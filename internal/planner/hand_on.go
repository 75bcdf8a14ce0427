package planner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// elsewhereError is a call that another planner may be able to make.
type elsewhereError struct {
	provider string
	// nobody says that no planner announces the provider at the moment, unknown why it is
	// not known who does.
	nobody  bool
	unknown error
}

func (e *elsewhereError) Error() string {
	switch {
	case e.unknown != nil:
		return fmt.Sprintf("this planner has no provider %q and cannot see which one has it: %s", e.provider, e.unknown)
	case e.nobody:
		return fmt.Sprintf("this planner has no provider %q, and no planner announces it: the run waits up to %s for one that does", e.provider, providerWait)
	}
	return fmt.Sprintf("this planner has no provider %q: the run waits for a planner that has it", e.provider)
}

const (
	// providerWait is how long nobody may announce a provider before the runs that need it
	// end. A planner takes its announcement back when it is stopped, so a restart has to
	// fit in.
	providerWait = 30 * time.Second
	// forgetMissing is how old the last look for a missing provider may be for the time
	// before it to count. The runs that need it come every few seconds, but to other
	// planners, too.
	forgetMissing = time.Minute
)

// missing is why a provider that this planner does not have cannot be asked: another
// planner may have it, unless nobody has announced it for [providerWait].
func (p *Planner) missing(ctx context.Context, provider string) error {
	living, err := p.cfg.Directory.Providers(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		p.missed.Clear()
		return &elsewhereError{provider: provider, unknown: err}
	}
	p.missed.Found(living...)
	if slices.Contains(living, provider) {
		return &elsewhereError{provider: provider}
	}
	if p.missed.Miss(provider) < providerWait {
		return &elsewhereError{provider: provider, nobody: true}
	}
	return &llm.Error{Kind: llm.KindOther, Message: fmt.Sprintf("this planner has no provider %q, and no planner has announced it for %s; this one has %v", provider, providerWait, p.names.providers)}
}

// lookForMissing notices what is announced again while no run asks for it here.
func (p *Planner) lookForMissing(ctx context.Context) {
	if !p.missed.Any() {
		return
	}
	living, err := p.cfg.Directory.Providers(ctx)
	if err != nil {
		p.missed.Clear()
		return
	}
	p.missed.Found(living...)
}

var (
	// passedOn is when a delivery goes to a planner again, which may be the wrong one
	// again. After these attempts the pauses are those of notAsked.
	passedOn = retry.Policy{Attempts: 7, First: 50 * time.Millisecond, Factor: 2}
	// unannounced is the same while nobody announces the provider.
	unannounced = retry.Policy{First: time.Second, Factor: 2, Max: 5 * time.Second}
)

// pause is how long the run waits before a planner gets it again. A planner that has the
// provider and takes no work, since it is rate limited, may do so for hours.
func (e *elsewhereError) pause(run events.Run, before reducer.Attempt) time.Duration {
	n := before.NotAsked
	switch {
	case e.nobody:
		return unannounced.Delay(n + 1)
	case n < passedOn.Attempts:
		return passedOn.Delay(n + 1)
	}
	before.NotAsked -= passedOn.Attempts - 1
	return pause(run, before, 0)
}

// handOn gives work back that another planner may do. It stands in the log, where it
// does not count as a failure, so that no lost worker is seen in the next delivery.
func handOn(run events.Run, err error, before reducer.Attempt) (r worker.Result, handed bool) {
	var elsewhere *elsewhereError
	if !errors.As(err, &elsewhere) {
		return r, false
	}
	failure := events.LLMAttemptFailed{Kind: string(llm.KindOther), Message: clean(err.Error()), NotAsked: true}
	return worker.Retry(failure, elsewhere.pause(run, before)), true
}
