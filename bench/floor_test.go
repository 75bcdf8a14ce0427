package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAHopIsKnownByItsBody(t *testing.T) {
	t.Parallel()
	h := make(hops, 32)
	i, err := h.hop([]byte(`{"type":"Continue","n":12,"from":"observing"}`))
	require.NoError(t, err)
	require.Equal(t, 11, i)
	require.Equal(t, []string{"idle", "planning", "acting", "observing", "planning"}, []string{h.to(-1), h.to(0), h.to(1), h.to(2), h.to(3)})
	require.Equal(t, "done", h.to(31))
	for _, body := range []string{`{}`, `{"n":0}`, `{"n":33}`, `{"n":"x"}`} {
		_, err := h.hop([]byte(body))
		require.ErrorContains(t, err, "no number of an event", body)
	}
}

// What was in flight when a batch was sent goes as the next one.
func TestCommitterSendsWhatWaited(t *testing.T) {
	t.Parallel()
	var sent []bareBatch
	c := &committer{publish: func(b bareBatch) { sent = append(sent, b) }}
	for range 3 {
		c.append(bareAppend{})
	}
	require.Len(t, sent, 1)
	require.Len(t, sent[0].appends, 1)
	sent[0].then()
	require.Len(t, sent, 2)
	require.Len(t, sent[1].appends, 2)
	sent[1].then()
	c.append(bareAppend{})
	require.Len(t, sent, 3)
}

func TestTheModelKnowsItsStepByTheLastCall(t *testing.T) {
	t.Parallel()
	require.Zero(t, lastStep([]byte(`{"messages":[{"role":"user","content":"Do the steps."}]}`)))
	require.EqualValues(t, 120, lastStep([]byte(`"119 * (17 + 4)" "120 * (17 + 4)" "2520"`)))
}
