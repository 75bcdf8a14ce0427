package llmhttp

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/moorebus/moorebus/pkg/llm"
)

// Described returns the request's tools without those that have the name of one of the
// provider's own: the API describes them to the model itself.
func Described(req llm.Request) []llm.Tool {
	if len(req.ProviderTools) == 0 {
		return req.Tools
	}
	own := map[string]bool{}
	for _, raw := range req.ProviderTools {
		var t struct {
			Name string `json:"name"`
		}
		_ = json.Unmarshal(raw, &t) // one without a name has none in common
		own[t.Name] = true
	}
	return slices.DeleteFunc(slices.Clone(req.Tools), func(t llm.Tool) bool { return own[t.Name] })
}

// JSON writes a value that always encodes, with as few escapes as there can be.
func JSON(v any) json.RawMessage {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
	return bytes.TrimSpace(out.Bytes())
}
