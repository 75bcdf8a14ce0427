package mcptool

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/moorebus/moorebus/pkg/tool"
)

// ownTool is a tool that stands for other requests than tools/call.
type ownTool struct {
	name, description string
	schema            json.RawMessage
	ask               func(ctx context.Context, client *mcp.ClientSession, arguments json.RawMessage, meta mcp.Meta) (string, error)
}

const nothing = `{"type":"object","properties":{},"additionalProperties":false}`

// resourceTools are those of a server with resources, promptTools of one with prompts.
var (
	resourceTools = []ownTool{
		{"list_resources", "Lists the server's resources: their URIs, and templates of URIs, with what they are.", json.RawMessage(nothing), listResources},
		{"read_resource", "Reads a resource of the server.", json.RawMessage(`{"type":"object","properties":{"uri":{"type":"string","description":"The resource's URI, as list_resources shows it or after one of the templates."}},"required":["uri"],"additionalProperties":false}`), readResource},
	}
	promptTools = []ownTool{
		{"list_prompts", "Lists the server's prompts, which are instructions for tasks, with their arguments.", json.RawMessage(nothing), listPrompts},
		{"get_prompt", "Returns a prompt of the server, with the arguments filled in.", json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"},"arguments":{"type":"object","additionalProperties":{"type":"string"}}},"required":["name"],"additionalProperties":false}`), getPrompt},
	}
)

// maxLines bounds the entries of a list of resources or prompts.
const maxLines = 1000

// listed collects the lines of a list.
type listed struct{ lines []string }

// add adds an entry. It reports whether more fit.
func (l *listed) add(name string, more ...string) bool {
	if len(l.lines) == maxLines {
		l.lines = append(l.lines, "… and more, which are not shown")
	}
	if len(l.lines) > maxLines {
		return false
	}
	said := name
	for _, text := range more {
		if text != "" && text != name {
			said += " | " + text
		}
	}
	l.lines = append(l.lines, said)
	return true
}

func (l *listed) text() string {
	if len(l.lines) == 0 {
		return "There are none."
	}
	return strings.Join(l.lines, "\n")
}

func listResources(ctx context.Context, client *mcp.ClientSession, _ json.RawMessage, meta mcp.Meta) (string, error) {
	var l listed
	for r, err := range client.Resources(ctx, &mcp.ListResourcesParams{Meta: meta}) {
		if err != nil {
			return "", err
		}
		if !l.add(r.URI, r.Name, r.MIMEType, r.Description) {
			return l.text(), nil
		}
	}
	for r, err := range client.ResourceTemplates(ctx, &mcp.ListResourceTemplatesParams{Meta: meta}) {
		if answerOf(err) != nil {
			break // a server with resources need not have templates
		}
		if err != nil {
			return "", err
		}
		if !l.add(r.URITemplate, r.Name, r.MIMEType, r.Description) {
			break
		}
	}
	return l.text(), nil
}

func readResource(ctx context.Context, client *mcp.ClientSession, arguments json.RawMessage, meta mcp.Meta) (string, error) {
	var in struct{ URI string }
	if err := json.Unmarshal(arguments, &in); err != nil || in.URI == "" {
		return "", tool.Failf(tool.CodeInvalidArguments, "give the uri of the resource")
	}
	res, err := client.ReadResource(ctx, &mcp.ReadResourceParams{URI: in.URI, Meta: meta})
	if err != nil {
		return "", err
	}
	var parts []string
	for _, c := range res.Contents {
		said, _ := resource(ctx, c)
		if c != nil && c.Blob == nil && c.URI == in.URI {
			said = c.Text
		}
		parts = append(parts, said)
	}
	return strings.Join(parts, "\n"), nil
}

func listPrompts(ctx context.Context, client *mcp.ClientSession, _ json.RawMessage, meta mcp.Meta) (string, error) {
	var l listed
	for p, err := range client.Prompts(ctx, &mcp.ListPromptsParams{Meta: meta}) {
		if err != nil {
			return "", err
		}
		var names []string
		for _, a := range p.Arguments {
			name := a.Name
			if !a.Required {
				name += "?"
			}
			names = append(names, name)
		}
		if !l.add(p.Name, "arguments: "+strings.Join(names, ", "), p.Description) {
			break
		}
	}
	return l.text(), nil
}

func getPrompt(ctx context.Context, client *mcp.ClientSession, arguments json.RawMessage, meta mcp.Meta) (string, error) {
	var in struct {
		Name      string
		Arguments map[string]string
	}
	if err := json.Unmarshal(arguments, &in); err != nil || in.Name == "" {
		return "", tool.Failf(tool.CodeInvalidArguments, "give the name of the prompt, and its arguments as texts")
	}
	res, err := client.GetPrompt(ctx, &mcp.GetPromptParams{Name: in.Name, Arguments: in.Arguments, Meta: meta})
	if err != nil {
		return "", err
	}
	var parts []string
	for _, m := range res.Messages {
		said, _ := part(ctx, m.Content)
		parts = append(parts, fmt.Sprintf("%s: %s", m.Role, said))
	}
	return strings.Join(parts, "\n\n"), nil
}
