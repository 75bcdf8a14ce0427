package toolfile_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/internal/compose/toolfile"
	"github.com/moorebus/moorebus/pkg/tool/builtin"
)

func TestMemoryStandsForItsTools(t *testing.T) {
	file, err := agentfile.ParseTools([]byte("tools:\n  - {builtin: calculator}\n  - {builtin: memory, pool: notes}\n"), agentfile.YAML)
	require.NoError(t, err)
	registry, _, err := toolfile.Tools(file)
	require.NoError(t, err)
	require.Len(t, registry.Definitions(), 6)
	for _, name := range builtin.MemoryNames() {
		made, ok := registry.Lookup(name)
		require.True(t, ok)
		require.Equal(t, "notes", made.Definition().Pool)
		require.True(t, callctx.UsesMemory(made))
	}
	for text, want := range map[string]string{
		"tools: [{builtin: memory, name: mine}]":                  "tools[0].builtin: memory stands for five tools",
		"tools: [{builtin: memory, description: D.}]":             "memory stands for five tools",
		"tools: [{builtin: memory}, {builtin: storage_load}]":     `"storage_load": two tools have this name`,
		"tools: [{builtin: memory}, {builtin: memory, pool: b}]":  "is the name of tools[0] too",
		"tools: [{builtin: memory}, {builtin: x, effect: never}]": "tools[1].effect",
	} {
		file, err := agentfile.ParseTools([]byte(text), agentfile.YAML)
		if err == nil {
			_, _, err = toolfile.Tools(file)
		}
		require.ErrorContains(t, err, want, text)
	}
}

func TestLocalToolsHaveThoseOfMemory(t *testing.T) {
	registry, _, err := toolfile.LocalTools(nil)
	require.NoError(t, err)
	for _, name := range builtin.MemoryNames() {
		_, ok := registry.Lookup(name)
		require.True(t, ok, name)
	}
}
