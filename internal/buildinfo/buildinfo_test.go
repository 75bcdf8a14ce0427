package buildinfo

import (
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func TestFacts(t *testing.T) {
	facts := read(&debug.BuildInfo{Main: debug.Module{Version: "v0.4.0"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123abcd"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}, {Key: "vcs.modified", Value: "true"},
	}})
	text := facts.Text("planner")
	require.True(t, strings.HasPrefix(text, "planner v0.4.0\ncommit 0123abcd of 2026-01-02T03:04:05Z, with changes that are not committed\n"), text)
	require.Contains(t, text, "\ntable "+reducer.DefaultTable().Hash()+"\n")
	require.Len(t, facts.Schemas, len(events.Types()))
	require.Regexp(t, `(?m)^schemas [1-9]\d* types of version 1`, text)
	require.True(t, strings.HasPrefix(read(nil).Text("planner"), "planner unknown\ncommit unknown\n"))
}
