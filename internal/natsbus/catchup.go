package natsbus

import (
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// asks are the subjects on which listeners ask for model text that they missed. The
// answer comes on the run's chunks and never on a reply subject, which would go
// past permissions.
const asks = "catchup.*.*"

// Asks are the subjects of those questions, which never come to the log.
func Asks() []string { return []string{"catchup.>"} }

// AskCatchUp asks for what a run's model said so far.
func (b *Bus) AskCatchUp(run events.Run) error {
	if err := b.NC.Publish(run.CatchUpSubject(), nil); err != nil {
		return fmt.Errorf("ask for the text of run %s: %w", run.ID, api.Classify(err))
	}
	return nil
}

// WatchAsks calls fn for the runs that somebody asks about.
func (b *Bus) WatchAsks(fn func(run events.Run)) (stop func(), err error) {
	t, err := b.newTap(asks)
	if err != nil {
		return nil, err
	}
	return t.run(func() {
		msgs, _ := t.queue.take() // who is not answered asks again
		for _, msg := range msgs {
			if run, ok := b.asked(msg.Subject); ok {
				fn(run)
			}
		}
	}), nil
}

// asked reads the run in a question's subject.
func (b *Bus) asked(subject string) (events.Run, bool) {
	tokens := strings.Split(subject, ".")
	if len(tokens) != 3 {
		return events.Run{}, false
	}
	run := events.NewRun(tokens[1], tokens[2], b.shards)
	return run, journal.CheckRun(b.shards, run) == nil
}
