package builtin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/tooltest"
	"github.com/moorebus/moorebus/pkg/tool"
)

func TestNew(t *testing.T) {
	opts := Options{Root: t.TempDir(), Hosts: []string{"example.org"}}
	for _, name := range Names() {
		made, err := New(name, opts)
		require.NoError(t, err)
		def := made.Definition()
		require.NoError(t, def.Validate())
		require.Equal(t, name, def.Name)
		require.True(t, def.Effect.Repeatable())
		require.Equal(t, tool.Low, def.Risk)
		require.NotEmpty(t, def.Description)
	}
	_, err := New("shell", opts)
	require.ErrorContains(t, err, `"shell" not found; there are: ask_human, calculator, current_time, http_get, read_file`)
	_, err = New(ReadFile, Options{})
	require.ErrorContains(t, err, "set its root")
	_, err = New(ReadFile, Options{Root: t.TempDir() + "/none"})
	require.Error(t, err)
	_, err = New(HTTPGet, Options{})
	require.ErrorContains(t, err, "allowed hosts")
}

func currentTimeCase(t *testing.T, arguments string) tooltest.Case {
	t.Helper()
	clock := func() time.Time { return time.Date(2024, 7, 1, 12, 30, 5, 7, time.UTC) }
	made, err := New(CurrentTime, Options{Now: clock})
	require.NoError(t, err)
	return tooltest.Case{Tool: made, Arguments: arguments}
}

func TestCurrentTimeSuite(t *testing.T) {
	tooltest.Suite{
		Success: func(t *testing.T) tooltest.Case {
			c := currentTimeCase(t, `{"timezone":"Europe/Madrid"}`)
			c.Want = "2024-07-01T14:30:05+02:00"
			return c
		},
		Failure: func(t *testing.T) tooltest.Case {
			c := currentTimeCase(t, `{"timezone":"Mars/Olympus"}`)
			c.Code, c.Want = tool.CodeInvalidArguments, `unknown time zone "Mars/Olympus"`
			return c
		},
	}.Run(t)
}

func TestCurrentTimeZones(t *testing.T) {
	for _, arguments := range []string{"", "{}", `{"timezone":""}`, `{"timezone":"UTC"}`} {
		c := currentTimeCase(t, arguments)
		got, err := c.Tool.Run(t.Context(), tool.Call{Arguments: arguments})
		require.NoError(t, err)
		require.Equal(t, "2024-07-01T12:30:05Z", got)
	}
	for _, zone := range []string{"Local", "local", "../../etc/passwd", "/etc/localtime"} {
		c := currentTimeCase(t, `{"timezone":"`+zone+`"}`)
		_, err := c.Tool.Run(t.Context(), tool.Call{Arguments: c.Arguments})
		require.ErrorContains(t, err, "unknown time zone")
	}
}
