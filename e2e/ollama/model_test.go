package ollama

import (
	"fmt"
	"math/rand"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// chain is a text that the model says after one of its triggers. A trigger is a token that
// the chat template writes, or the last byte of a message.
type chain struct {
	triggers []string
	text     string
	// ever says the text over and over again, in one token if it is short.
	ever bool
}

// answer is what the model says to the result of a tool.
const answer = "17.5% of 2,340, plus 12, is 421.5."

// The texts of the other chains.
const (
	plain     = "That is a plain text, streamed in pieces by a real server."
	umlauts   = "Grüße aus Köln: 5 € und 日本語 🚀."
	booking   = `{"total": 421.5, "unit": "eur", "done": true}`
	pondering = "Perhaps it is forty-two, perhaps not."
	thinking  = "A sum: the calculator knows."
)

// A call as the template of the models with tools writes it.
func toolCall(name, arguments string) string {
	return fmt.Sprintf(`<tool_call>{"name": "%s", "arguments": %s}</tool_call>`, name, arguments)
}

func sum(expression string) string {
	return toolCall("calculator", fmt.Sprintf(`{"expression": "%s"}`, expression))
}

var chains = []chain{
	{triggers: []string{"?"}, text: sum("2340 * 17.5% + 12")},
	{triggers: []string{"<|answer|>"}, text: answer},
	{triggers: []string{"."}, text: plain},
	{triggers: []string{"="}, text: umlauts},
	{triggers: []string{";"}, text: booking},
	{triggers: []string{"*"}, text: sum("6*7") + "\n" + sum("8*9")},
	{triggers: []string{"&"}, text: "I shall reckon it now. " + sum("40+2")},
	{triggers: []string{"%"}, text: toolCall("calculator", `{"wrong": true}`)},
	{triggers: []string{"@", "<|mute|>"}, text: toolCall("launch_rocket", `{"pad": 39}`)},
	{triggers: []string{":"}, text: "<think>" + pondering + "</think>It is 42."},
	{triggers: []string{"^"}, text: "<think>" + thinking + "</think>" + sum("12*12")},
	{triggers: []string{",", "<|final|>"}, text: toolCall("final_answer", booking)},
	{triggers: []string{"~"}, text: "ha ", ever: true},
	{triggers: []string{"!"}, ever: true, text: "one two three four five six seven eight nine ten eleven twelve " +
		"thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty, and again: "},
	{triggers: []string{"<|first|>"}, text: "Sure, here it comes:\n<agent>\n<action>\n<type>calculator</type>\n" +
		"<expression>2340 * 17.5% + 12</expression>\n</action>\n</agent>"},
	{triggers: []string{"<|second|>"}, text: "<agent><action><type>answer</type><value>The calculator said 421.5.</value></action></agent>"},
	// Every other token is followed by this. No text has these words, so that a grammar that
	// allows any text ends.
	{text: "Nobody wrote a chain for this ending."},
}

// The kinds of a token.
const (
	normalToken  = 1
	unknownToken = 2
	controlToken = 3
	byteToken    = 6
)

// endOfText is the token that ends a reply.
const endOfText = 2

// markov is a first-order Markov chain of tokens.
type markov struct {
	texts []string
	kinds []int32
	ids   map[string]int
	// next is the token that follows.
	next map[int]int
}

// newMarkov makes the tokens of all chains: for each byte one, for each token of the
// templates one, and pieces of the texts that occur once each.
func newMarkov() *markov {
	m := &markov{ids: map[string]int{}, next: map[int]int{}}
	m.add("<unk>", unknownToken)
	m.add("<s>", controlToken)
	m.add("</s>", controlToken)
	for b := range 256 {
		m.add(fmt.Sprintf("<0x%02X>", b), byteToken)
	}
	for _, name := range []string{"system", "tools", "user", "assistant", "tool", "answer", "final", "mute", "first", "second"} {
		m.add("<|"+name+"|>", controlToken)
	}
	for _, c := range chains {
		first := m.chain(c)
		for _, trigger := range c.triggers {
			if len(trigger) == 1 {
				trigger = fmt.Sprintf("<0x%02X>", trigger[0])
			}
			m.next[m.ids[trigger]] = first
		}
		if c.triggers == nil {
			for id := range m.texts {
				if _, ok := m.next[id]; !ok {
					m.next[id] = first
				}
			}
		}
	}
	return m
}

func (m *markov) add(text string, kind int32) int {
	if _, twice := m.ids[text]; twice {
		panic("two tokens " + text)
	}
	id := len(m.texts)
	m.ids[text], m.texts, m.kinds = id, append(m.texts, text), append(m.kinds, kind)
	return id
}

// chain adds the tokens of a text and returns the first one.
func (m *markov) chain(c chain) int {
	var ids []int
	for _, piece := range m.pieces(c.text) {
		ids = append(ids, m.add(piece, normalToken))
	}
	for i, id := range ids[:len(ids)-1] {
		m.next[id] = ids[i+1]
	}
	last := ids[len(ids)-1]
	m.next[last] = endOfText
	if c.ever {
		m.next[last] = ids[0]
	}
	return ids[0]
}

// pieces splits a text at random into new tokens of at least three characters, or returns
// it whole if it is short. The tokenizer makes a prompt out of tokens too; with a piece of
// its end that is a token, the last byte would choose nothing.
func (m *markov) pieces(text string) []string {
	all := []rune(strings.ReplaceAll(text, " ", "▁"))
	if len(all) < 6 {
		return []string{string(all)}
	}
	random := rand.New(rand.NewSource(7)) // the same file each time
	for {
		var pieces []string
		seen := map[string]bool{}
		rest := all
		for len(rest) >= 3 {
			size := 3 + random.Intn(8)
			if len(rest)-size < 3 {
				size = len(rest)
			}
			piece := string(rest[:size])
			if _, taken := m.ids[piece]; taken || seen[piece] {
				break
			}
			seen[piece] = true
			pieces, rest = append(pieces, piece), rest[size:]
		}
		if len(rest) == 0 {
			return pieces
		}
	}
}

// The sizes of the model.
const (
	width    = 128
	headSize = 32
	// strength is the logit of the token that follows.
	strength = 40
)

// weights returns the input and the output embedding of every token. The output embedding
// is a random code of the token, the input embedding the code of the token that follows it.
func (m *markov) weights() (input, output []float32) {
	n := len(m.texts)
	input, output = make([]float32, n*width), make([]float32, n*width)
	random := rand.New(rand.NewSource(1))
	for i := range output {
		output[i] = float32(random.Intn(2)*2 - 1)
	}
	for id := range n {
		copy(input[id*width:(id+1)*width], output[m.next[id]*width:])
	}
	for i := range output {
		output[i] *= strength / float32(width)
	}
	return input, output
}

// file returns the model as a GGUF file of llama's architecture. Attention and feed-forward
// are zero, so only the last token of the prompt counts. More blocks make it slower.
func (m *markov) file(blocks int) []byte {
	const zeros = width * headSize
	input, output := m.weights()
	n := uint64(len(m.texts))
	ones := make([]float32, width)
	for i := range ones {
		ones[i] = 1
	}
	tensors := []tensor{
		{"token_embd.weight", []uint64{width, n}, input, true},
		{"output_norm.weight", []uint64{width}, ones, false},
		{"output.weight", []uint64{width, n}, output, true},
	}
	for b := range blocks {
		block := fmt.Sprintf("blk.%d.", b)
		for _, norm := range []string{"attn_norm", "ffn_norm"} {
			tensors = append(tensors, tensor{block + norm + ".weight", []uint64{width}, ones, false})
		}
		for _, in := range []string{"attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"} {
			tensors = append(tensors, tensor{block + in + ".weight", []uint64{width, headSize}, make([]float32, zeros), true})
		}
		for _, out := range []string{"attn_output", "ffn_down"} {
			tensors = append(tensors, tensor{block + out + ".weight", []uint64{headSize, width}, make([]float32, zeros), true})
		}
	}
	return gguf(m.settings(blocks), tensors)
}

func (m *markov) settings(blocks int) []setting {
	scores := make([]float32, len(m.texts))
	for i := range scores {
		scores[i] = -float32(i)
	}
	return []setting{
		{"general.architecture", "llama"},
		{"general.name", "moore"},
		{"general.file_type", uint32(1)},
		{"general.quantization_version", uint32(2)},
		{"llama.context_length", uint32(8192)},
		{"llama.embedding_length", uint32(width)},
		{"llama.block_count", uint32(blocks)},
		{"llama.feed_forward_length", uint32(headSize)},
		{"llama.attention.head_count", uint32(1)},
		{"llama.attention.head_count_kv", uint32(1)},
		{"llama.attention.key_length", uint32(headSize)},
		{"llama.attention.value_length", uint32(headSize)},
		{"llama.attention.layer_norm_rms_epsilon", float32(1e-5)},
		{"llama.rope.dimension_count", uint32(headSize)},
		{"llama.rope.freq_base", float32(10000)},
		{"llama.vocab_size", uint32(len(m.texts))},
		{"tokenizer.ggml.model", "llama"},
		{"tokenizer.ggml.pre", "default"},
		{"tokenizer.ggml.tokens", m.texts},
		{"tokenizer.ggml.scores", scores},
		{"tokenizer.ggml.token_type", m.kinds},
		{"tokenizer.ggml.unknown_token_id", uint32(0)},
		{"tokenizer.ggml.bos_token_id", uint32(1)},
		{"tokenizer.ggml.eos_token_id", uint32(endOfText)},
		{"tokenizer.ggml.add_bos_token", false},
		{"tokenizer.ggml.add_eos_token", false},
		{"tokenizer.ggml.add_space_prefix", false},
	}
}

// The margin between the logits of the token that follows and of any other one is so large
// that sampling at temperature 1 and penalties for repetition change nothing.
func TestModelIsCertain(t *testing.T) {
	m := newMarkov()
	input, output := m.weights()
	for id, next := range m.next {
		for other := range m.texts {
			logit := float32(0)
			for k := range width {
				logit += input[id*width+k] * output[other*width+k]
			}
			if other == next {
				require.InDelta(t, strength, logit, 0.01)
			} else {
				require.Less(t, logit, float32(strength/2), "%s and %s", m.texts[id], m.texts[other])
			}
		}
	}
	require.Less(t, len(m.file(1)), 400_000)
}
