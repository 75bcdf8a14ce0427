package o200k

import (
	"bytes"
	"compress/gzip"
	"flag"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"
	"github.com/tiktoken-go/tokenizer/codec"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write o200k_base.gz")

// TestVocabulary: the vocabulary is that of another implementation, and -update takes it from there.
func TestVocabulary(t *testing.T) {
	var want strings.Builder
	for other, id := codec.NewO200kBase(), uint(0); id < 199998; id++ {
		token, err := other.Decode([]uint{id})
		require.NoError(t, err)
		want.WriteByte(byte(len(token)))
		want.WriteString(token)
	}
	if *update {
		var file bytes.Buffer
		w, err := gzip.NewWriterLevel(&file, gzip.BestCompression)
		require.NoError(t, err)
		_, err = w.Write([]byte(want.String()))
		require.NoError(t, err)
		require.NoError(t, w.Close())
		require.NoError(t, os.WriteFile("o200k_base.gz", file.Bytes(), 0o644))
		packed = file.Bytes()
	}
	require.True(t, want.String() == unpack(packed), "run go test -run TestVocabulary . -update")
}

// TestAsOthers: texts of less than a KiB, with shorter words than 128 bytes, have as many tokens
// as another implementation says.
func TestAsOthers(t *testing.T) {
	t.Parallel()
	other := codec.NewO200kBase()
	same := func(t require.TestingT, text string) {
		want, err := other.Count(text)
		require.NoError(t, err)
		require.Equal(t, want, Estimate(text), "%q", text)
	}
	for _, text := range []string{
		"", "hello world", "It's 12345 o'clock, HTTPServer'LL say", "  two\n\n\t tabs  \r\n", "a \u00a0\u2003b", "\u0301A e\u0301",
		"今天天气很好，我们去公园散步吧。", "func (s Set) With(more Set) Set {\n\tall := Set{}\n", "🙂🙂 ok", "//\n/ /", " ", "   ",
	} {
		same(t, text)
	}
	// The other one skips control characters, and does not divide white space with several line ends
	// as OpenAI's own does.
	text := rapid.StringOfN(rapid.RuneFrom([]rune("aA  \t1'sSé中.,/"), unicode.Latin, unicode.Han, unicode.M, unicode.N, unicode.P, unicode.S, unicode.Zs), 0, 40, 120)
	rapid.Check(t, func(t *rapid.T) { same(t, text.Draw(t, "text")) })
}

func TestEstimate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"": 0, "hello world": 2, "\xff\xfe": 2, "\n \n": 1,
		strings.Repeat("the quick brown fox ", 1600): 6401,
	} {
		require.Equal(t, want, Estimate(text), "%.40q", text)
	}
}

// A tokenizer that merges pairs takes quadratic time for one long word.
func TestOneLongWordTakesNoTime(t *testing.T) {
	t.Parallel()
	began := time.Now()
	for _, word := range []string{strings.Repeat("a", 256<<10), strings.Repeat("ä", 128<<10), strings.Repeat("\xff", 64<<10)} {
		require.Positive(t, Estimate(word))
	}
	require.Less(t, time.Since(began), 20*time.Second)
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				if n := Estimate("hello world"); n != 2 {
					t.Errorf("%d tokens", n)
				}
			}
		})
	}
	all.Wait()
}

func BenchmarkEstimate(b *testing.B) {
	text, err := os.ReadFile("../../../ARCHITECTURE.md")
	require.NoError(b, err)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		Estimate(string(text))
	}
}
