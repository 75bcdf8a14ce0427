package livetext

import (
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// waiting is how many chunks wait for a slow reader before some are lost. A [Listener] asks for
// those again.
const waiting = 64

// Watch returns the chunks of a run as they come, until stop is called. What a slow reader does
// not take is lost. The error is the feed's.
func Watch(feed journal.Feed, run events.Run) (chunks <-chan []byte, stop func(), err error) {
	heard := make(chan []byte, waiting)
	stop, err = feed.WatchChunks(run, func(data []byte) {
		select {
		case heard <- data:
		default:
		}
	})
	return heard, stop, err
}
