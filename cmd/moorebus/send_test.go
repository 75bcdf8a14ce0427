package main

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control"
)

func TestMessage(t *testing.T) {
	inputs, err := message(strings.NewReader("of stdin\n"), "m", "-")
	require.NoError(t, err)
	require.Equal(t, []control.Input{control.UserMessage{MessageID: "m", Content: "of stdin"}}, inputs)
	for _, bad := range []string{"", " ", "\xff", strings.Repeat("x", 1<<20)} {
		_, err := message(strings.NewReader(""), "", bad)
		var exit *cli.ExitError
		require.ErrorAs(t, err, &exit)
		require.Equal(t, cli.ExitUsage, exit.Code)
	}
	_, err = message(io.LimitReader(zeros{}, 2<<20), "", "-")
	require.ErrorContains(t, err, "larger than 960 KiB")
	_, err = message(nil, strings.Repeat("m", 300), "hello")
	require.ErrorContains(t, err, "--id")
}

// zeros reads as '0' for ever.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}
