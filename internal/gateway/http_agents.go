package gateway

import (
	"mime"
	"net/http"

	"github.com/moorebus/moorebus/internal/agentfile"
)

func (g *Gateway) getAgents(w http.ResponseWriter, r *http.Request) error {
	ctx, stop := bounded(r)
	defer stop()
	agents, err := g.StoredAgents(ctx, namespace(r))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, agents)
}

func (g *Gateway) getAgent(w http.ResponseWriter, r *http.Request) error {
	ctx, stop := bounded(r)
	defer stop()
	data, err := g.Agent(ctx, namespace(r), r.PathValue("name"))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data) // a client that is gone cannot be told so
	return nil
}

func (g *Gateway) putAgent(w http.ResponseWriter, r *http.Request) error {
	ctx, stop := bounded(r)
	defer stop()
	format, err := formatOf(r.Header.Get("Content-Type"))
	if err != nil {
		return err
	}
	data, err := readBody(w, r)
	if err != nil {
		return err
	}
	info, err := g.PutAgent(ctx, namespace(r), r.PathValue("name"), data, format)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, info)
}

func formatOf(contentType string) (agentfile.Format, error) {
	if contentType == "" {
		return agentfile.Auto, nil
	}
	media, _, err := mime.ParseMediaType(contentType)
	switch {
	case err != nil:
	case media == "application/json":
		return agentfile.JSON, nil
	case media == "application/yaml", media == "application/x-yaml", media == "text/yaml", media == "text/x-yaml":
		return agentfile.YAML, nil
	}
	return "", fault(http.StatusUnsupportedMediaType, CodeUnsupportedMedia, "Content-Type %q is not application/yaml or application/json", contentType)
}

func (g *Gateway) getTools(w http.ResponseWriter, r *http.Request) error {
	ctx, stop := bounded(r)
	defer stop()
	tools, err := g.Tools(ctx)
	if err != nil {
		return err
	}
	if tools == nil {
		tools = tools[:0:0]
	}
	return writeJSON(w, http.StatusOK, tools)
}
