package ports

import (
	"context"
	"errors"
)

// ErrNoAnswer says that no process answers a question now, or that the one that began to do so
// went away. What was asked for may have happened.
var ErrNoAnswer = errors.New("nobody answers")

// Questions are what one role asks another one, over the bus and outside the log. A topic is a
// token.
type Questions interface {
	// Question returns the answer of one of the processes that answer the topic. ctx bounds the
	// wait. Errors: ErrNoAnswer, [journal.ErrDenied], [journal.ErrTooLarge], the context's.
	Question(ctx context.Context, topic string, question []byte) ([]byte, error)

	// Answer calls answer for each question of the topic that this process gets, each in its own
	// goroutine, until stop is called. ctx ends when stop is called, and stop
	// waits for the answers. A question may contain anything, so answer must rely on the
	// log alone. Answers may be larger than a message of the bus.
	Answer(topic string, answer func(ctx context.Context, question []byte) []byte) (stop func(), err error)
}
