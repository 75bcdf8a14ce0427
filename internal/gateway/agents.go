package gateway

import (
	"context"
	"errors"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// AgentInfo names a stored definition. Hash identifies its content.
type AgentInfo struct {
	Name string `json:"name"`
	Hash string `json:"hash"`
}

// PutAgent stores a definition under a name, replacing the one that is there.
// The definition may leave its name out but not have another one. Its tools need
// not exist.
func (g *Gateway) PutAgent(ctx context.Context, ns, name string, data []byte, f agentfile.Format) (AgentInfo, error) {
	ns, err := g.checkNamespace(ns)
	if err != nil {
		return AgentInfo{}, err
	}
	if !events.ValidToken(name) {
		return AgentInfo{}, badRequest(CodeBadAgent, "%q is not an agent's name; use [a-z0-9][a-z0-9_-]{0,62}", name)
	}
	a, err := agentfile.ParseDefinition(data, f, agentfile.Options{CheckScript: g.cfg.CheckScript, Name: name, Fixed: true})
	if errors.Is(err, agentfile.ErrTooLarge) {
		return AgentInfo{}, err
	}
	if err != nil {
		return AgentInfo{}, badRequest(CodeBadAgent, "%s", err.Error())
	}
	if err := g.launcher.Check(&a); err != nil {
		return AgentInfo{}, refused(err)
	}
	if err := g.cfg.Agents.PutAgent(ctx, ns, name, agentfile.Marshal(a)); err != nil {
		return AgentInfo{}, err
	}
	return AgentInfo{Name: name, Hash: agentfile.Hash(a)}, nil
}

// Agent returns a stored definition as canonical JSON.
func (g *Gateway) Agent(ctx context.Context, ns, name string) ([]byte, error) {
	ns, err := g.checkNamespace(ns)
	if err != nil {
		return nil, err
	}
	data, err := g.launcher.Agent(ctx, ns, name)
	return data, refused(err)
}

// StoredAgents returns every stored definition's name and hash, sorted by name.
func (g *Gateway) StoredAgents(ctx context.Context, ns string) ([]AgentInfo, error) {
	ns, err := g.checkNamespace(ns)
	if err != nil {
		return nil, err
	}
	names, err := g.cfg.Agents.AgentNames(ctx, ns)
	if err != nil {
		return nil, err
	}
	infos := make([]AgentInfo, 0, len(names))
	for _, name := range names {
		data, err := g.cfg.Agents.Agent(ctx, ns, name)
		if errors.Is(err, journal.ErrNotFound) {
			continue // it went away meanwhile
		}
		if err != nil {
			return nil, err
		}
		info := AgentInfo{Name: name}
		// A definition of another version that cannot be read is still listed.
		if a, err := agentfile.ParseDefinition(data, agentfile.JSON, agentfile.Options{Stored: true}); err == nil {
			info.Hash = agentfile.Hash(a)
		}
		infos = append(infos, info)
	}
	return infos, nil
}
