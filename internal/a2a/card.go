package a2a

import (
	"cmp"
	"context"
	"net/http"
	"strings"

	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
)

// IdempotentMessages is the extension of A2A by which a server promises that a message which it
// gets again begins no other task.
const IdempotentMessages = "https://github.com/moorebus/moorebus/a2a/idempotent-messages/v1"

func (f *Face) getDefaultCard(w http.ResponseWriter, r *http.Request) error {
	ctx, stop := context.WithTimeout(r.Context(), requestTimeout)
	defer stop()
	name, err := f.defaultAgent(ctx)
	if err != nil {
		return err
	}
	return f.writeCard(ctx, w, r, "", name)
}

// defaultAgent returns the agent whose card is at the well-known place.
func (f *Face) defaultAgent(ctx context.Context) (string, error) {
	if f.cfg.Agent != "" {
		return f.cfg.Agent, nil
	}
	none := refusal.New(refusal.NotFound, refusal.CodeAgentNotFound,
		"this gateway has no default agent: name one with --a2a-agent, or use /v1/a2a/AGENT%s", cardPath)
	if f.cfg.Token {
		return "", none // without a token nobody learns which agents there are
	}
	agents, err := f.cfg.Control.StoredAgents(ctx, "")
	if err != nil {
		return "", err
	}
	if len(agents) != 1 {
		return "", none
	}
	return agents[0].Name, nil
}

func (f *Face) getCard(w http.ResponseWriter, r *http.Request) error {
	ctx, stop := context.WithTimeout(r.Context(), requestTimeout)
	defer stop()
	return f.writeCard(ctx, w, r, route.Namespace(r), r.PathValue("agent"))
}

func (f *Face) writeCard(ctx context.Context, w http.ResponseWriter, r *http.Request, ns, name string) error {
	ns, err := f.cfg.Control.CheckNamespace(ns)
	if err != nil {
		return err
	}
	a, hash, err := f.cfg.Control.Launcher.Definition(ctx, ns, name)
	if err != nil {
		return err
	}
	description := cmp.Or(a.Description, "The agent "+name+".")
	output := "text/plain"
	if len(a.OutputSchema) > 0 {
		output = "application/json"
	}
	c := card{
		Name: name, Description: description, Version: hash[:min(len(hash), 12)],
		SupportedInterfaces: []cardInterface{
			{URL: baseURL(r) + "/v1/a2a/" + name, ProtocolBinding: "HTTP+JSON", ProtocolVersion: Version},
			{URL: baseURL(r) + "/v1/a2a/" + name + rpcPath, ProtocolBinding: "JSONRPC", ProtocolVersion: Version},
		},
		Capabilities: capabilities{Streaming: true, PushNotifications: true, Extensions: []extension{{
			URI: IdempotentMessages, Description: "A message that comes again belongs to the task that it belonged to before, and begins no other.",
		}}},
		DefaultInputModes:  []string{"text/plain", "application/json", "image/png", "image/jpeg", "application/pdf"},
		DefaultOutputModes: []string{output},
		Skills:             []skill{{ID: name, Name: name, Description: description, Tags: []string{"agent"}}},
	}
	if f.cfg.Token {
		c.SecuritySchemes = map[string]securityScheme{"bearer": {HTTP: httpScheme{Scheme: "Bearer", Description: "The gateway's token."}}}
		c.Security = []map[string]schemeOptions{{"schemes": {"bearer": {List: []string{}}}}}
	}
	w.Header().Set("Cache-Control", "private, max-age=60")
	return write(w, http.StatusOK, "application/json", c)
}

// baseURL is where the client reached the gateway. A proxy that ends TLS says so.
func baseURL(r *http.Request) string {
	scheme := "http"
	if r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		scheme = "https"
	}
	return scheme + "://" + r.Host
}
