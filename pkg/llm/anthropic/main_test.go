package anthropic

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/pkg/llm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testKey = "sk-ant-secret-0123456789"

// open makes a Caller of the server at the address.
func open(t testing.TB, url string, change ...func(*Options)) *Caller {
	t.Helper()
	opts := Options{APIKey: testKey, BaseURL: url, Model: "claude-test", MaxBytes: llmtest.MaxWireBytes}
	for _, c := range change {
		c(&opts)
	}
	caller, err := New(opts)
	require.NoError(t, err)
	t.Cleanup(caller.Close)
	return caller
}

func TestConformance(t *testing.T) {
	llmtest.Run(t, func(t *testing.T, conv llmtest.Conversation) llm.Caller {
		return open(t, llmtest.NewModel(llmtest.Anthropic{}, conv...).Serve(t))
	}, llmtest.NoConfidence, llmtest.ObjectArguments)
}

func TestWire(t *testing.T) {
	llmtest.RunWire(t, llmtest.Anthropic{}, func(t *testing.T, url string) llm.Caller { return open(t, url) })
}
