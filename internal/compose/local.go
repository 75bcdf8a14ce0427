// Package compose builds the agent and the tools of a process that runs every role: those of its
// files, or an assistant.
package compose

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/compose/providerfile"
	"github.com/moorebus/moorebus/internal/compose/toolfile"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/internal/script"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool/builtin"
)

// Stdin is the name of an agent file that is read from standard input.
const Stdin = "-"

// readAgent reads an agent file, or standard input.
func readAgent(file string, o agentfile.Options) (agentfile.Documents, error) {
	if file != Stdin {
		return agentfile.ReadFile(file, o)
	}
	data, err := io.ReadAll(io.LimitReader(os.Stdin, agentfile.MaxSize+1))
	if err != nil {
		return agentfile.Documents{}, fmt.Errorf("stdin: %w", err)
	}
	docs, err := agentfile.ParseFile(data, o)
	if err != nil {
		return agentfile.Documents{}, fmt.Errorf("stdin: %w", err)
	}
	return docs, nil
}

// Documents reads the agent file, which may be [Stdin], and the tool file of a
// process that runs every role. Either name may be empty. Without an agent file the
// agent is an assistant with the builtin tools. Tools may be in one of the two files.
func Documents(agentFile, toolFile string) (agentfile.Documents, error) {
	var docs agentfile.Documents
	toolfile.HideFiles(toolFile)
	if agentFile != Stdin {
		toolfile.HideFiles(agentFile)
	}
	if agentFile != "" {
		var err error
		if docs, err = readAgent(agentFile, agentfile.Options{CheckScript: script.Check, CheckSchema: schema.Check}); err != nil {
			return docs, err
		}
		if docs.Agent == nil {
			return docs, fmt.Errorf("%s: holds no agent", agentFile)
		}
	}
	if toolFile != "" {
		if docs.Tools != nil {
			return docs, fmt.Errorf("there are tools in %s and in %s: remove one of them", agentFile, toolFile)
		}
		var err error
		if docs.Tools, err = agentfile.ReadTools(toolFile); err != nil {
			return docs, err
		}
	}
	if docs.Agent == nil {
		a, err := assistant(docs.Tools)
		if err != nil {
			return docs, err
		}
		docs.Agent = &a
	}
	return docs, nil
}

// assistant is the agent of users who name none: a real model with all available
// tools.
func assistant(tools *agentfile.ToolFile) (events.Agent, error) {
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider = "assistant", providers.Usual(os.Getenv)
	a.SystemPrompt = "You are a helpful assistant. Use the tools where they help; never do arithmetic in your head."
	a.Tools = AssistantTools(tools, nil)
	return a.Resolve()
}

// AssistantTools returns the tools of the assistant: those of the tool file, its MCP
// servers and its NATS services in the registry (which may be nil), or some builtins without a file.
func AssistantTools(file *agentfile.ToolFile, registry *toolset.Registry) []string {
	if file == nil {
		return []string{builtin.Calculator, builtin.CurrentTime}
	}
	var names []string
	for _, entry := range file.Tools {
		names = append(names, entry.Name)
	}
	if registry != nil && (file.MCP != nil || len(file.Services) > 0) {
		builtins := builtin.Names()
		for _, def := range registry.Definitions() {
			if !slices.Contains(names, def.Name) && !slices.Contains(builtins, def.Name) {
				names = append(names, def.Name)
			}
		}
	}
	return names
}

// CheckProvider returns an error with the exit code for missing settings if one of the
// agent's providers is not configured. The error says what to set.
func CheckProvider(a events.Agent, providersFile string, getenv func(string) string) error {
	callers, err := providerfile.Providers(providersFile, getenv)
	if err != nil {
		return toolfile.BadConfig(err)
	}
	names := a.Providers()
	at := slices.IndexFunc(names, func(name string) bool { return callers[name] == nil })
	if at < 0 {
		return nil
	}
	name := names[at]
	row, known := providers.Find(name)
	switch {
	case name == events.ClientProvider:
		return toolfile.BadConfig(errors.New("the agent's model is its client, which answers over HTTP, and this command serves none: start `moorebus dev`, and the run there with POST /v1/runs"))
	case name == providers.All()[0].Name:
		return toolfile.BadConfig(errors.New(providers.NoKey()))
	case known:
		return toolfile.BadConfig(fmt.Errorf("the agent's model provider %s is not configured: set %s, or %s for a server that is compatible", name, row.KeyVar, row.URLVar))
	}
	there := append(slices.Sorted(maps.Keys(callers)), events.ClientProvider)
	for _, p := range providers.All() {
		there = append(there, p.Name)
	}
	slices.Sort(there)
	there = slices.Compact(there)
	return toolfile.BadConfig(fmt.Errorf("the agent's model provider %q is unknown%s; known: %s; describe another one in a file for --providers",
		name, strict.DidYouMean(name, there), strings.Join(there, ", ")))
}

// AgentStore stores definitions of agents: a control.Controller, or a gateway's client.
type AgentStore interface {
	PutAgent(ctx context.Context, namespace, name string, data []byte, f agentfile.Format) (control.AgentInfo, error)
}

// PutAgent stores an agent under its name.
func PutAgent(ctx context.Context, g AgentStore, namespace string, a events.Agent) error {
	_, err := g.PutAgent(ctx, namespace, a.Name, agentfile.Marshal(a), agentfile.JSON)
	return err
}

// PutAgents stores all agents of the documents, so that they can call one another.
func PutAgents(ctx context.Context, g AgentStore, namespace string, docs agentfile.Documents) error {
	for _, a := range docs.Agents() {
		if err := PutAgent(ctx, g, namespace, a); err != nil {
			return err
		}
	}
	return nil
}
