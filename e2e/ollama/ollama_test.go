//go:build unix

package ollama

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/pkg/events"
)

// calculator is an agent with a tool.
const calculator = "tools: [calculator]"

// each runs a test over all APIs.
func each(t *testing.T, s *server, test func(t *testing.T, a api)) {
	t.Helper()
	for _, a := range apis {
		t.Run(a.kind, func(t *testing.T) {
			t.Parallel()
			test(t, a)
		})
	}
}

// TestOllama runs everything against one server.
func TestOllama(t *testing.T) {
	s := start(t)
	s.models()
	t.Run("replies", s.replies)
	t.Run("reasoning", s.reasoning)
	t.Run("text beside a call", s.textBesideCall)
	t.Run("wrong arguments", s.wrongArguments)
	t.Run("broken reply", s.brokenReply)
	t.Run("empty reply", s.emptyReply)
	t.Run("cut reply", s.cutReply)
	t.Run("dropped context", s.droppedContext)
	t.Run("schema", s.schema)
	t.Run("schema beside tools", s.schemaBesideTools)
	t.Run("schema refused", s.schemaRefused)
	t.Run("model without tools", s.modelWithoutTools)
	t.Run("unknown model", s.unknownModel)
	t.Run("environment", s.environment)
	t.Run("doctor", s.doctor)
}

func (s *server) replies(t *testing.T) {
	for _, c := range []struct {
		name   string
		task   task
		answer string
		types  string
	}{
		{"text", task{task: "Say it.", agent: calculator}, plain, "Start LlmFinalAnswer"},
		{"not ASCII", task{task: "Euro ="}, umlauts, "Start LlmFinalAnswer"},
		{"call", task{task: "What is 17.5% of 2,340, plus 12?", agent: calculator}, answer,
			"Start LlmToolCall ToolSuccess Continue LlmFinalAnswer"},
		{"two calls", task{task: "Two *", agent: calculator}, answer,
			"Start LlmParallelToolCalls ToolCallResult ToolCallResult ToolSuccess Continue LlmFinalAnswer"},
		{"text protocol", task{model: "moore-text", llm: ", text: true", task: "What is 17.5% of 2,340, plus 12?", agent: calculator},
			"The calculator said 421.5.", "Start LlmToolCall ToolSuccess Continue LlmFinalAnswer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			each(t, s, func(t *testing.T, a api) {
				r := s.prepare(t, a, c.task).run()
				require.Zero(t, r.code)
				require.Equal(t, c.answer+"\n", r.stdout)
				require.Equal(t, c.types, r.types())
				for _, e := range r.events {
					f := events.FactsOf(e.Data)
					if f == nil {
						continue
					}
					want := "stop"
					if strings.Contains(string(e.Type()), "Tool") {
						want = "tool_calls"
					}
					require.Equal(t, want, f.Finish, e.Type())
					require.NotEmpty(t, f.FinishRaw)
					require.Len(t, f.RequestSHA256, 64)
				}
				last := of[*events.LLMFinalAnswer](r)[0]
				require.Positive(t, last.Usage.Input)
				require.Positive(t, last.Usage.Output)
			})
		})
	}
}

// The thoughts of a model are in the log, and go back beside the result of the call that
// they led to.
func (s *server) reasoning(t *testing.T) {
	text := func(f events.Facts) (all string) {
		for _, part := range f.Reasoning {
			all += part.Text
		}
		return all
	}
	each(t, s, func(t *testing.T, a api) {
		r := s.prepare(t, a, task{model: "moore-think", task: "Think :"}).run()
		require.Zero(t, r.code)
		require.Equal(t, "It is 42.\n", r.stdout)
		require.Equal(t, pondering, text(of[*events.LLMFinalAnswer](r)[0].Facts))

		r = s.prepare(t, a, task{model: "moore-think", task: "Think ^", agent: calculator}).run()
		require.Zero(t, r.code)
		require.Equal(t, answer+"\n", r.stdout)
		require.Equal(t, thinking, text(of[*events.LLMToolCall](r)[0].Facts))
		require.Len(t, r.asked, 2)
		require.Contains(t, r.asked[1].request, thinking)
	})
}

// Over the Responses API, Ollama leaves the text out of the complete reply and has it in the
// stream alone.
func (s *server) textBesideCall(t *testing.T) {
	each(t, s, func(t *testing.T, a api) {
		r := s.prepare(t, a, task{task: "First &", agent: calculator}).run()
		require.Zero(t, r.code)
		require.Equal(t, answer+"\n", r.stdout)
		if a.kind != "responses" {
			require.Equal(t, "I shall reckon it now.", strings.TrimSpace(of[*events.LLMToolCall](r)[0].Content))
		}
	})
}

// The model is told what is wrong with its call, and goes on.
func (s *server) wrongArguments(t *testing.T) {
	each(t, s, func(t *testing.T, a api) {
		r := s.prepare(t, a, task{task: "Wrong %", agent: calculator}).run()
		require.Zero(t, r.code)
		require.Equal(t, "Start ReplyInvalid LlmFinalAnswer", r.types())
	})
}

// Ollama ends a model that repeats itself: the reply has no ending and no usage. It is
// counted, asked for again, and never taken for an answer.
func (s *server) brokenReply(t *testing.T) {
	each(t, s, func(t *testing.T, a api) {
		r := s.prepare(t, a, task{task: "Laugh ~", agent: calculator}).run()
		require.Equal(t, 4, r.code)
		require.Empty(t, r.stdout)
		require.Empty(t, of[*events.LLMFinalAnswer](r))
		failed := of[*events.LLMAttemptFailed](r)
		require.Greater(t, len(failed), 1)
		require.GreaterOrEqual(t, len(r.asked), len(failed))
		require.LessOrEqual(t, len(r.asked), len(failed)+1, "a reply that is not used is in the log")
		for _, f := range failed {
			require.Equal(t, codes.KindBrokenReply, f.Kind)
		}
	})
}

// Ollama drops a call of a tool that it does not know, and nothing is left of the reply. The
// model is told once.
func (s *server) emptyReply(t *testing.T) {
	each(t, s, func(t *testing.T, a api) {
		r := s.prepare(t, a, task{model: "moore-mute", task: "Go.", agent: calculator}).run()
		require.Equal(t, 4, r.code)
		require.Equal(t, "Start ReplyInvalid FatalError", r.types())
		require.Equal(t, "empty_reply", of[*events.ReplyInvalid](r)[0].Results[0].Code)
		require.Equal(t, "empty_reply", of[*events.FatalError](r)[0].Code)
		require.Len(t, r.asked, 2)
	})
}

// Over the Responses API, Ollama says that a reply is complete that it cut off. That shows
// in its usage.
func (s *server) cutReply(t *testing.T) {
	each(t, s, func(t *testing.T, a api) {
		count := task{llm: ", max_tokens: 12", task: "Count!"}

		count.agent = "on_cut: accept"
		r := s.prepare(t, a, count).run()
		require.Equal(t, 6, r.code)
		require.True(t, strings.HasPrefix(r.stdout, "one two"), r.stdout)
		require.Contains(t, r.stderr, "incomplete")
		last := of[*events.LLMFinalAnswer](r)[0]
		require.True(t, last.Incomplete)
		require.Equal(t, "length", last.Finish)

		count.agent = "on_cut: fail"
		r = s.prepare(t, a, count).run()
		require.Equal(t, 4, r.code)
		require.Equal(t, "Start FatalError", r.types())
		require.Equal(t, "cut_off", of[*events.FatalError](r)[0].Code)

		count.agent = "on_cut: continue" // the model goes on with another text, and ends it
		count.llm = ", max_tokens: 30"
		r = s.prepare(t, a, count).run()
		require.Zero(t, r.code)
		require.True(t, strings.HasPrefix(r.stdout, "one two"), r.stdout)
		require.Len(t, r.asked, 2)
		last = of[*events.LLMFinalAnswer](r)[0]
		require.False(t, last.Incomplete)
		require.Equal(t, "stop", last.Finish)
		require.Greater(t, last.Usage.Output, 30)

		// Of a call that is cut, Ollama shows nothing.
		r = s.prepare(t, a, task{llm: ", max_tokens: 8", task: "What is it?", agent: calculator + "\non_cut: fail"}).run()
		require.Equal(t, 4, r.code)
		require.Equal(t, "Start FatalError", r.types())
		require.Equal(t, "cut_off", of[*events.FatalError](r)[0].Code)
	})
}

// Ollama drops the middle of a prompt that is longer than num_ctx, and answers as if nothing
// had happened.
func (s *server) droppedContext(t *testing.T) {
	each(t, s, func(t *testing.T, a api) {
		r := s.prepare(t, a, task{model: "moore-small", task: strings.Repeat("Read this sentence with care, it matters. ", 300)}).run()
		require.Contains(t, r.stderr, "num_ctx")
	})
}

const schemaOfBooking = `
output_schema:
  type: object
  properties: {total: {type: number}, unit: {type: string}, done: {type: boolean}}
  required: [total, unit, done]
  additionalProperties: false
`

// Ollama makes a grammar of the schema, so that a model that says something else has to
// keep to it. Its Messages API has no schema: there it is a tool, which the model has to
// call.
func (s *server) schema(t *testing.T) {
	each(t, s, func(t *testing.T, a api) {
		c := task{task: "Book it.", agent: schemaOfBooking}
		if a.kind == "anthropic" {
			c.task = "Book it,"
		}
		r := s.prepare(t, a, c).run()
		require.Zero(t, r.code)
		require.JSONEq(t, booking, r.stdout)
		require.Equal(t, "Start LlmFinalAnswer", r.types())
	})
}

// With tools beside it, the model can call one, and answers by the schema afterwards.
func (s *server) schemaBesideTools(t *testing.T) {
	each(t, s, func(t *testing.T, a api) {
		c := task{task: "Book it?", agent: calculator + schemaOfBooking}
		if a.kind == "anthropic" {
			c.model = "moore-final"
		}
		for _, c.unknown = range []bool{false, true} {
			r := s.prepare(t, a, c).run()
			require.Zero(t, r.code)
			require.JSONEq(t, booking, r.stdout)
			require.Len(t, of[*events.ToolSuccess](r), 1)
		}
	})
}

// A schema that the server cannot compile is no failure that passes.
func (s *server) schemaRefused(t *testing.T) {
	each(t, s, func(t *testing.T, a api) {
		if a.kind == "anthropic" {
			return // there the schema is that of a tool
		}
		r := s.prepare(t, a, task{task: "Book it.", agent: `output_schema: {type: object, properties: {code: {type: string, pattern: '\d{3}-[A-Z]+'}}}`}).run()
		require.Equal(t, 4, r.code)
		require.Equal(t, "schema_refused", of[*events.FatalError](r)[0].Code)
		require.Contains(t, r.stderr, "invalid JSON schema in format")
		require.Len(t, r.asked, 1)
	})
}

func (s *server) modelWithoutTools(t *testing.T) {
	each(t, s, func(t *testing.T, a api) {
		r := s.prepare(t, a, task{model: "moore-text", task: "Say it.", agent: calculator}).run()
		require.Equal(t, 4, r.code)
		require.Contains(t, r.stderr, "does not support tools")
		require.Len(t, r.asked, 1)
	})
}

func (s *server) unknownModel(t *testing.T) {
	each(t, s, func(t *testing.T, a api) {
		r := s.prepare(t, a, task{model: "nosuch", task: "Say it."}).run()
		require.Equal(t, 4, r.code)
		require.Contains(t, r.stderr, "model 'nosuch' not found")
		require.Len(t, r.asked, 1)
	})
}

// The variables alone configure a run of the assistant.
func (s *server) environment(t *testing.T) {
	for _, a := range []api{apis[0], apis[2]} {
		t.Run(a.kind, func(t *testing.T) {
			t.Parallel()
			p := s.prepare(t, a, task{})
			p.args = []string{"run", "What is 17.5% of 2,340, plus 12?"}
			prefix := strings.ToUpper(a.kind)
			p.env = []string{prefix + "_BASE_URL=" + p.wire.URL + a.base, prefix + "_MODEL=moore"}
			r := p.run()
			require.Zero(t, r.code)
			require.Equal(t, answer+"\n", r.stdout)
			require.Len(t, of[*events.ToolSuccess](r), 1)
			require.Len(t, r.asked, 2)
			require.Equal(t, http.StatusOK, r.asked[1].status)
		})
	}
}

// What doctor says about the variables.
func (s *server) doctor(t *testing.T) {
	for _, c := range []struct{ name, base, model, says string }{
		{"no such model", "/v1", "moore-smal", `moore-small\b`},
		{"no version", "", "moore", `/v1\b`},
		{"no tools", "/v1", "moore-text", `text: true`},
		{"small context", "/v1", "moore-small", `num_ctx`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := s.prepare(t, apis[0], task{})
			p.env = []string{"OPENAI_BASE_URL=http://" + s.address + c.base, "OPENAI_MODEL=" + c.model}
			out, _ := p.command("doctor").CombinedOutput() // it may exit with an error
			require.Regexp(t, c.says, string(out))
		})
	}
}

// A server that dies in the middle of a reply, and comes back.
func TestServerDiesInAReply(t *testing.T) {
	s := start(t)
	s.model("moore", s.blob(newMarkov().file(1)), strings.Replace(withTools, "THINKING", "", 1), 8192)
	p := s.prepare(t, apis[0], task{llm: ", max_tokens: 1000", task: "Count!", agent: "on_cut: accept"})
	p.wire.began, p.wire.goOn = make(chan struct{}), make(chan struct{})
	go func() {
		<-p.wire.began
		s.kill()
		s.serve()
		close(p.wire.goOn)
	}()
	r := p.run("-o", "json")
	require.Equal(t, 6, r.code)
	require.Contains(t, r.stdout, `"kind":"llm_token"`)
	require.Len(t, of[*events.LLMAttemptFailed](r), 1)
	require.Equal(t, codes.KindBrokenReply, of[*events.LLMAttemptFailed](r)[0].Kind)
	require.Len(t, of[*events.LLMFinalAnswer](r), 1)
}
