package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/providers"
)

// model looks for the provider's default model in its list of models, and asks a server that
// may be Ollama what the model can do. A list that cannot be read says nothing.
func (d *Checks) model(ctx context.Context, v providers.Provider, base *url.URL, list []byte, sign func(http.Header)) []natsbus.Finding {
	var listed struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
		HasMore bool `json:"has_more"`
	}
	if json.Unmarshal(list, &listed) != nil || len(listed.Data) == 0 {
		return nil
	}
	names := make([]string, 0, len(listed.Data))
	for _, m := range listed.Data {
		names = append(names, strings.TrimPrefix(m.ID, "models/")) // as Gemini lists them
	}
	model := cmp.Or(d.Getenv(v.ModelVar), v.Model)
	if !lists(names, model) {
		if listed.HasMore { // it may be on a later page
			return nil
		}
		return []natsbus.Finding{finding(natsbus.Warning, "set "+v.ModelVar+" to one of the server's models: "+strings.Join(strict.Nearest(model, names, shown), ", "),
			"the server does not list the model %s", model)}
	}
	host, err := providers.HostOf(v.Name, "", base.String(), nil)
	if err != nil {
		return nil
	}
	if row := host.Row(); row != "" && row != "ollama" {
		return nil
	}
	return d.ollama(ctx, base, model, sign)
}

// lists reports whether a model is listed: by its name, with the tag latest, or with a date.
func lists(names []string, model string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		rest, found := strings.CutPrefix(name, model)
		return found && (rest == "" || rest == ":latest" || len(rest) == len("-20250929") && strings.HasPrefix(rest, "-20"))
	})
}

// shown is how many names a finding shows.
const shown = 5

// ollama asks for what Ollama says of a model. Other servers do not know the request.
func (d *Checks) ollama(ctx context.Context, base *url.URL, model string, sign func(http.Header)) []natsbus.Finding {
	root := *base
	root.Path = strings.TrimSuffix(root.Path, "/v1")
	body, _ := json.Marshal(map[string]string{"model": model}) // strings always encode
	got, err := d.send(ctx, http.MethodPost, root.JoinPath("api/show"), body, sign)
	var about struct {
		Capabilities []string `json:"capabilities"`
		Parameters   string   `json:"parameters"`
	}
	if err != nil || got.status != http.StatusOK || json.Unmarshal(got.body, &about) != nil || len(about.Capabilities) == 0 {
		return nil
	}
	var found []natsbus.Finding
	if !slices.Contains(about.Capabilities, "tools") {
		found = append(found, finding(natsbus.Warning, "give its agents `llm: {text: true}`, the text protocol for models without tool calls, or choose a model with tools",
			"Ollama's model %s has no tools (%s)", model, strings.Join(about.Capabilities, ", ")))
	}
	for line := range strings.Lines(about.Parameters) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == "num_ctx" {
			return append(found, finding(natsbus.Good, "",
				"Ollama gives model %s a context of %s tokens (num_ctx), and drops the beginning of longer prompts without a word", model, fields[1]))
		}
	}
	return append(found, finding(natsbus.Warning, "set num_ctx in the model (PARAMETER num_ctx 32768 in a Modelfile), or OLLAMA_CONTEXT_LENGTH where Ollama starts",
		"Ollama's model %s has no num_ctx: it gets Ollama's default context, which may be 4,096 tokens, and Ollama drops the beginning of longer prompts without a word", model))
}
