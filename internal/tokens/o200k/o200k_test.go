package o200k_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/tokens/o200k"
)

func TestEstimate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"": 0, "hello world": 2, "\xff\xfe": 2,
		strings.Repeat("the quick brown fox ", 1600): 6401,
	} {
		require.InDelta(t, want, o200k.Estimate(text), 4, "%.40q", text)
	}
}

// A tokenizer that merges pairs takes quadratic time for one long word.
func TestOneLongWordTakesNoTime(t *testing.T) {
	t.Parallel()
	began := time.Now()
	for _, word := range []string{strings.Repeat("a", 256<<10), strings.Repeat("ä", 128<<10), strings.Repeat("\xff", 64<<10)} {
		require.Positive(t, o200k.Estimate(word))
	}
	require.Less(t, time.Since(began), 20*time.Second)
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				if n := o200k.Estimate("hello world"); n != 2 {
					t.Errorf("%d tokens", n)
				}
			}
		})
	}
	all.Wait()
}
