package natsbus

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A process answers a bounded number of questions at once, and the others in their turn.
func TestAnswersAtOnceAreBounded(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	began, free := make(chan struct{}, 2*maxAnswers), make(chan struct{})
	var mu sync.Mutex
	atOnce, most := 0, 0
	count := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		atOnce += n
		most = max(most, atOnce)
	}
	stop, err := bus.Answer("topic", func(context.Context, []byte) []byte {
		count(1)
		defer count(-1)
		began <- struct{}{}
		<-free
		return []byte("yes")
	})
	require.NoError(t, err)
	defer stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var asking sync.WaitGroup
	for range 2 * maxAnswers {
		asking.Go(func() {
			answer, err := bus.Question(ctx, "topic", nil)
			if err != nil || string(answer) != "yes" {
				t.Errorf("%q, %v", answer, err)
			}
		})
	}
	for range maxAnswers {
		<-began
	}
	close(free)
	asking.Wait()
	require.Equal(t, maxAnswers, most)
}
