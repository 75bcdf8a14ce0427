package planner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/worker"
)

// elsewhereError is a call that another planner can make.
type elsewhereError struct{ provider string }

func (e *elsewhereError) Error() string {
	return fmt.Sprintf("this planner has no provider %q: the run waits for a planner that has it", e.provider)
}

// missing is why a provider that this planner does not have cannot be asked: another
// planner may have it.
func (p *Planner) missing(ctx context.Context, provider string) error {
	living, err := p.cfg.Directory.Providers(ctx)
	if err == nil && slices.Contains(living, provider) {
		return &elsewhereError{provider}
	}
	return &llm.Error{Kind: llm.KindOther, Message: fmt.Sprintf("this planner has no provider %q; it has %v", provider, p.names.providers)}
}

// The pauses before a delivery goes to a planner again, which may be the wrong one
// again.
const (
	firstHandOn = 50 * time.Millisecond
	lastHandOn  = 5 * time.Second
)

// handOn gives work back that another planner can do. It stands in the log, where it
// does not count as a failure, so that no lost worker is seen in the next delivery.
func handOn(err error, before reducer.Attempt) (r worker.Result, handed bool) {
	var elsewhere *elsewhereError
	if !errors.As(err, &elsewhere) {
		return r, false
	}
	failure := events.LLMAttemptFailed{Kind: string(llm.KindOther), Message: err.Error(), NotAsked: true}
	return worker.Retry(failure, min(firstHandOn<<min(before.NotAsked, 7), lastHandOn)), true
}
