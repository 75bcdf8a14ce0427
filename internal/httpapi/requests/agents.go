package requests

import (
	"context"
	"encoding/json"
	"mime"
	"strconv"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/buildinfo"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// NewAgent is the definition of an agent and its name.
type NewAgent struct {
	Named
	File AgentFile `body:""`
}

// AgentFile is a definition as it is written.
type AgentFile struct {
	Data   []byte
	Format agentfile.Format
}

// ReadBody is that of [route.BodyReader].
func (f *AgentFile) ReadBody(r *route.Request) (err error) {
	if f.Format, err = formatOf(r.Header.Get("Content-Type")); err == nil {
		f.Data, err = r.Body()
	}
	return err
}

// WriteBody is that of [route.BodyWriter].
func (f *AgentFile) WriteBody() (data []byte, media string, err error) {
	switch f.Format {
	case agentfile.JSON:
		media = "application/json"
	case agentfile.YAML:
		media = "application/yaml"
	}
	return f.Data, media, nil
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
	return "", refusal.New(refusal.WrongMedia, refusal.CodeUnsupportedMedia, "Content-Type %q is not application/yaml or application/json", contentType)
}

// Ref names what a reference of an event points to. Who asks has to know its digest.
type Ref struct {
	Bucket string `path:"bucket"`
	SHA256 string `path:"sha256"`
	Size   string `query:"size" doc:"The reference's size. It is required."`
}

// The requests about agents and tools, and about the gateway itself.
var (
	ListAgents = ofNamespace(route.Route{Pattern: "GET /v1/agents", Summary: "Lists the stored agents."}, (*control.Controller).StoredAgents)
	GetAgent   = route.Define(route.Route{
		Pattern: "GET /v1/agents/{name}", Summary: "Returns the definition of a stored agent.", Answer: events.Agent{}, Codes: []string{refusal.CodeAgentNotFound},
	}, func(ctx context.Context, c *control.Controller, in Named) (json.RawMessage, error) {
		return c.Agent(ctx, in.Namespace, in.Name)
	})
	PutAgent = route.Define(route.Route{
		Pattern: "PUT /v1/agents/{name}", Summary: "Stores an agent under a name. A run keeps the version that it started with.",
		Body: events.Agent{}, Bodies: []string{"application/yaml"}, Codes: with(route.AgentCodes, refusal.CodeUnsupportedMedia),
		Example: `{"system_prompt": "You answer with sources.", "llm": {"provider": "openai"}, "tools": ["search"]}`,
	}, func(ctx context.Context, c *control.Controller, in NewAgent) (control.AgentInfo, error) {
		return c.PutAgent(ctx, in.Namespace, in.Name, in.File.Data, in.File.Format)
	})
	Tools = route.Define(route.Route{
		Pattern: "GET /v1/tools", Summary: "Lists the tools that actors announce.",
	}, func(ctx context.Context, c *control.Controller, _ None) ([]events.ToolSpec, error) {
		return c.Tools(ctx)
	})
	Blob = route.Define(route.Route{
		Pattern: "GET /v1/blobs/{bucket}/{sha256}", Summary: "Returns a large result, a file of a message or long reasoning, by an event's reference.",
		Streams: []string{"application/octet-stream"}, Codes: []string{refusal.CodeUnknownRef},
	}, func(ctx context.Context, c *control.Controller, in Ref) ([]byte, error) {
		size, err := strconv.Atoi(in.Size)
		if err != nil || size < 0 {
			return nil, route.BadParameter("size: must be that of the reference")
		}
		return c.Blob(ctx, events.Ref{Bucket: in.Bucket, Key: in.SHA256, Size: size, SHA256: in.SHA256}) // the digest is the key of every object
	})
	Version = route.Define(route.Route{
		Pattern: "GET /v1/version", Summary: "Returns the gateway's version, and the events that it can read.",
	}, func(context.Context, *control.Controller, None) (buildinfo.Facts, error) {
		return buildinfo.Read(), nil
	})
	Table = route.Define(route.Route{
		Pattern: "GET /v1/table", Summary: "Returns the transition table: which event leads from which state to which.",
	}, func(_ context.Context, c *control.Controller, _ None) (Transitions, error) {
		return transitionsOf(c.Table), nil
	})
)
