package callname_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/callname"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func TestNew(t *testing.T) {
	long := strings.Repeat("x", 128)
	for _, c := range []struct {
		known    []string
		provider string
		want     string
	}{
		{nil, "toolu_01A-b.c:d~e", "toolu_01A-b.c:d~e"},
		{nil, long, long},
		{[]string{"call_1"}, "call_1", "call_1~1"},
		{[]string{"call_1", "call_1~1"}, "call_1", "call_1~2"},
		{[]string{"call_1", "call_1~1", "call_1~2"}, "call_1~1", "call_1~1~1"},
		{[]string{"call", "call~1", "call~3", "caller~2"}, "call", "call~2"},
		{nil, "", "call~1"},
		{[]string{"call_1"}, "", "call~1"},
		{[]string{"call~1"}, "", "call~2"},
	} {
		require.Equal(t, c.want, callname.New(c.known, c.provider), "%q of %q", c.provider, c.known)
	}
	for _, odd := range []string{long + "x", "two\nlines", "functions.search:0 again", "café", "a/b"} {
		name := callname.New(nil, odd)
		require.Equal(t, "call_"+events.Hash([]byte(odd))[:16], name)
		require.Equal(t, name+"~1", callname.New([]string{name}, odd), "it is not new")
	}
}

func TestCallsThatAllHaveOneID(t *testing.T) {
	var known []string
	for range 2000 {
		known = append(known, callname.New(known, "call"))
	}
	require.Equal(t, "call~1999", known[1999])
}

func TestFind(t *testing.T) {
	name := callname.New(nil, "two\nlines")
	mem := &reducer.Memory{ToolCalls: map[string]*reducer.ToolCallRecord{"call_1": {}, name: {ProviderID: "two\nlines"}}}
	require.Equal(t, name, callname.Find(mem, "two\nlines"), "the provider's own id is understood")
	for _, id := range []string{name, "call_1", "three\nlines", ""} {
		require.Equal(t, id, callname.Find(mem, id))
	}
	mem.ToolCalls[name].ProviderID = "" // a model named a call so
	mem.ToolCalls[name+"~1"] = &reducer.ToolCallRecord{ProviderID: "two\nlines"}
	require.Equal(t, "two\nlines", callname.Find(mem, "two\nlines"), "not the other call, on which nobody would decide so")
}
