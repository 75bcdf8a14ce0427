package providers_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/providers"
)

// of looks a model up as a provider file would.
func of(t *testing.T, kind, like, address, model string) providers.Capabilities {
	t.Helper()
	host, err := providers.HostOf(kind, like, address, nil)
	require.NoError(t, err)
	return host.Capabilities(model)
}

func TestHowARowIsFound(t *testing.T) {
	for _, tt := range []struct{ kind, like, address, model, row string }{
		{"openai", "", providers.OpenAIURL, "gpt-5", "openai"},
		{"openai", "", providers.OpenAIURL, "anything", "openai"},
		{"openai", "", "https://x.openai.azure.com/v1", "my-deployment", "openai"},
		{"openai", "", "http://127.0.0.1:9/v1", "openai/o3", "openai"},
		{"openai", "", "http://127.0.0.1:9/v1", "ft:GPT-5-mini:acme", "openai"},
		{"openai", "", "http://127.0.0.1:9/v1", "m", ""},
		{"openai", "openai", "http://127.0.0.1:9/v1", "m", "openai"},
		{"responses", "deepseek", "http://127.0.0.1:9/v1", "m", "deepseek"},
		{"responses", "", providers.OpenAIURL, "m", "openai"},
		{"anthropic", "", "http://127.0.0.1:9", "claude-sonnet-5", "anthropic"},
		{"anthropic", "", "http://127.0.0.1:9", "gpt-5", ""},
		{"openai", "", "http://127.0.0.1:9/v1", "claude-sonnet-5", ""},
		{"anthropic", "", providers.AnthropicURL, "claude-sonnet-5", "anthropic"},
		{"openai", "", "https://api.openai.com.example.org/v1", "m", ""},
		{"openai", "", "http://localhost:11434/v1", "gpt-oss:20b", "ollama"},
		{"anthropic", "", "http://127.0.0.1:11434", "qwen3", "ollama"},
		{"openai", "", "http://ollama:11434/v1", "gpt-oss:20b", "ollama"},
		{"openai", "", "https://gpu.example.org:1234/v1", "m", ""},
		{"openai", "", "https://europe-west1-aiplatform.googleapis.com/v1/x", "google/gemini-3-pro", "gemini"},
		{"openai", "", "https://openrouter.ai/api/v1", "deepseek/deepseek-v4", "openrouter"},
		{"openai", "", "http://10.0.0.1/v1", "deepseek-ai/DeepSeek-V4", "deepseek"},
		{"openai", "vllm", "http://10.0.0.1/v1", "deepseek-ai/DeepSeek-V4", "vllm"},
	} {
		require.Equal(t, tt.row, of(t, tt.kind, tt.like, tt.address, tt.model).Row, "%v", tt)
	}
	// The name says which model it is, not which software serves it.
	require.Equal(t, providers.Native, of(t, "openai", "", providers.OpenAIURL, "gpt-5").OutputWithTools)
	require.Equal(t, providers.SecondPass, of(t, "openai", "", "http://127.0.0.1:9/v1", "gpt-5").OutputWithTools)
	require.Contains(t, string(of(t, "openai", "kimi", "", "kimi-k2.6").Body), "thinking")
	require.Empty(t, of(t, "openai", "", "http://127.0.0.1:9/v1", "kimi-k2.6").Body)
	require.True(t, of(t, "openai", "groq", "", "qwen/qwen3-32b").ThinkTags)
}

func TestOverrides(t *testing.T) {
	host, err := providers.HostOf("openai", "openai", "", json.RawMessage(`{"efforts":["high"],"refuses":[],"strict_schemas":false,"images":"none"}`))
	require.NoError(t, err)
	for range 2 { // nothing that was read before is changed
		c := host.Capabilities("o3")
		require.Equal(t, []string{"high"}, c.Efforts)
		require.Empty(t, c.Refuses)
		require.False(t, c.StrictSchemas)
		require.Equal(t, "none", c.Images)
		require.Equal(t, "max_completion_tokens", c.MaxTokensField, "from the row")
		require.Equal(t, []string{"low", "medium", "high"}, of(t, "openai", "openai", "", "o3").Efforts)
	}
	for overrides, want := range map[string]string{
		`{"colour":"red"}`:              "capabilities.colour: is not a key",
		`{"images":"some"}`:             `capabilities.images: "some" is not a value of it; use none, user, all`,
		`{"efforts":["low","extreme"]}`: `capabilities.efforts: "extreme" is not a value of it; use none, minimal`,
		`{"think_tags":"yes"}`:          `capabilities.think_tags: "yes" is not a value`,
		`{"Images":"some"}`:             "capabilities.Images: is not a key",
		`{"body":[1]}`:                  "capabilities.body: [1] is not a value",
		`{"body":null}`:                 "capabilities.body: null is not a value",
		`{"api":"anthropic"}`:           `capabilities.api: "anthropic" is not a value of it; use chat, responses`,
		`[]`:                            "capabilities: must be a mapping",
		`null`:                          "capabilities: must be a mapping",
	} {
		_, err := providers.HostOf("openai", "", "", json.RawMessage(overrides))
		require.ErrorContains(t, err, want)
	}
	_, err = providers.HostOf("openai", "opnai", "", nil)
	require.ErrorContains(t, err, `like: "opnai" is not a row`)
	_, err = providers.HostOf("openai", "anthropic", "", nil)
	require.ErrorContains(t, err, "like: row anthropic is not for kind openai; use openai")
}

func TestEffort(t *testing.T) {
	for _, tt := range []struct {
		levels      []string
		asked, want string
	}{
		{[]string{"low", "medium", "high"}, "medium", "medium"},
		{[]string{"low", "medium", "high"}, "none", "low"},
		{[]string{"low", "medium", "high"}, "max", "high"},
		{[]string{"none", "low", "high"}, "minimal", "low"},
		{[]string{"low", "high", "max"}, "medium", "high"},
		{[]string{"low", "high", "max"}, "xhigh", "max"},
		{[]string{"none", "high"}, "minimal", "high"},
		{[]string{"none"}, "high", ""},
		{nil, "high", ""},
	} {
		require.Equal(t, tt.want, providers.Capabilities{Efforts: tt.levels}.Effort(tt.asked), "%v", tt)
	}
}

func TestModelsThatNeedResponses(t *testing.T) {
	for _, tt := range []struct {
		model, effort string
		tools, want   bool
	}{
		{"gpt-4o", "", true, false},
		{"gpt-5", "high", true, false},
		{"gpt-5.4", "", true, false},
		{"gpt-5.4", "low", true, true},
		{"gpt-5.4-mini", "low", false, false},
		{"gpt-5.5", "", true, true},
		{"gpt-5.5", "none", true, true},
		{"gpt-5.5", "low", false, false},
		{"gpt-5.6-terra", "", true, true},
		{"gpt-5.6", "none", true, false},
		{"gpt-5.10", "", true, true},
		{"gpt-6-astra", "", true, true},
		{"gpt-5-pro", "", false, true},
		{"gpt-5.1-codex", "", true, true},
		{"gpt-5-chat-latest", "", true, false},
	} {
		require.Equal(t, tt.want, of(t, "openai", "", providers.OpenAIURL, tt.model).NeedsResponses(tt.tools, tt.effort), "%v", tt)
	}
}

func TestAnthropicModels(t *testing.T) {
	for _, tt := range []struct {
		model, thinking           string
		off, preserved, byDefault bool
	}{
		{"claude-3-5-haiku-latest", "none", false, false, false},
		{"claude-3-haiku-20240307", "none", false, false, false},
		{"claude-3-7-sonnet-20250219", "enabled", true, false, false},
		{"claude-sonnet-4-5", "enabled", true, false, false},
		{"claude-haiku-4-5-20251001", "enabled", true, false, false},
		{"claude-opus-4-6", "adaptive", true, false, false},
		{"anthropic.claude-opus-4-7", "adaptive", true, false, false},
		{"anthropic/claude-opus-4.7", "adaptive", true, false, false},
		{"anthropic/claude-opus-5.5", "adaptive", false, true, true},
		{"minimax-m2", "enabled", true, false, true},
		{"claude-opus-4-20250514", "enabled", true, false, false},
		{"claude-sonnet-5", "adaptive", true, false, true},
		{"claude-opus-5", "adaptive", true, false, true},
		{"claude-opus-5-20260601", "adaptive", true, false, true},
		{"claude-opus-5-5", "adaptive", false, true, true},
		{"claude-haiku-5-5", "adaptive", true, true, true},
		{"claude-fable-5", "adaptive", false, false, true},
		{"claude-fable-5-1", "adaptive", false, true, true},
	} {
		c := of(t, "anthropic", "", "http://127.0.0.1:9", tt.model)
		require.Equal(t, []any{tt.thinking, tt.off, tt.preserved, tt.byDefault}, []any{c.Thinking, c.ThinkingOff, c.Preserved, c.ThinksByDefault}, tt.model)
	}
}

func TestReservedKeys(t *testing.T) {
	for _, key := range []string{"messages", "n", "background", "conversation"} {
		err := providers.CheckExtraBody(map[string]json.RawMessage{key: json.RawMessage(`2`)})
		require.ErrorContains(t, err, "extra_body."+key+": is set by Moorebus itself")
	}
	require.NoError(t, providers.CheckExtraBody(map[string]json.RawMessage{"top_k": json.RawMessage(`2`)}))
}
