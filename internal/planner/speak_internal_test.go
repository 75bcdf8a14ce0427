package planner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// said is a feed that notes what is published.
type said struct {
	journal.Feed
	chunks []string
}

func (s *said) PublishChunk(_ events.Run, data []byte) error {
	s.chunks = append(s.chunks, string(data))
	return nil
}

// A handler that said something answers late listeners until it ends. One that is silent answers nobody:
// planners would take it for a call in flight.
func TestSpeak(t *testing.T) {
	feed, run := &said{}, events.NewRun("default", runlog.NewID(), 1)
	p := &Planner{cfg: Config{}}
	p.cfg.Feed, p.cfg.Store = feed, runlog.New(runlog.Options{})
	say, end := p.Speak(run)
	end()
	say("late")
	require.Empty(t, p.streams.byRun)

	say, end = p.Speak(run)
	p.streams.answer(run)
	require.Empty(t, feed.chunks)
	say("a")
	p.streams.answer(run)
	require.Len(t, feed.chunks, 2)
	require.Contains(t, feed.chunks[1], `"catch_up":true`)
	end()
	say("b")
	p.streams.answer(run)
	require.Len(t, feed.chunks, 2)
	require.Empty(t, p.streams.byRun)
}
