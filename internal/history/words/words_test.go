package words_test

import (
	"encoding/json"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"

	"github.com/moorebus/moorebus/internal/history/words"
)

func of(text string) []string { return slices.Collect(words.Of(text)) }

func TestOf(t *testing.T) {
	long := strings.Repeat("ab", 500_000)
	for _, c := range []struct{ name, text, want string }{
		{"nothing", " \t…-", ""},
		{"case and punctuation", "Charge_card FAILED: ETIMEDOUT (v2.0)", "charge card failed etimedout v2 0"},
		{"full case folding", "Straße ŒUVRE ΣΊΣΥΦΟΣ ﬁn", "strasse œuvre σίσυφοσ fin"},
		{"dotted I", "İstanbul", "i̇stanbul"},
		{"one form of accents", "Cafe\u0301 CAF\u00c9", "caf\u00e9 caf\u00e9"},
		{"folding that decomposes", "J\u030c \u01f0", "\u01f0 \u01f0"},
		{"marks belong to words", "हिन्दी x\u0331\u0301y", "हिन्दी x\u0331\u0301y"},
		{"a mark that makes a sign of a sign", "a<\u0338b", "a b"},
		{"an ASCII letter before a mark", "abce\u0301 abce\u0301d", "abc\u00e9 abc\u00e9d"},
		{"Hangul is composed", "\u1112\u1161\u11ab\u1100\u1173\u11af 한글", "한글 한글"},
		{"digits of every script", "٣٤ 12½", "٣٤ 12"},
		{"Han, kana, Thai, Lao", "東京tower サーバー ไทย ລາວ", "東 京 tower サ ー バ ー ไ ท ย ລ າ ວ"},
		{"kana is composed", "か\u3099", "が"},
		{"half-width kana stays", "ｱｰ", "ｱ ｰ"},
		{"emoji divides", "a👍🏽b", "a b"},
		{"invalid UTF-8 divides", "a\xffb\xc3 \xe6\x9d", "a b"},
		{"NUL divides", "a\x00b", "a b"},
		{"a megabyte without a blank", long, long[:64]},
		{"64 characters, not bytes", strings.Repeat("é", 65), strings.Repeat("é", 64)},
		{"64 characters and a mark", strings.Repeat("e", 64) + "\u0301", strings.Repeat("e", 63) + "é"},
		{"operators of stores", `"AND" NEAR(a* -b) col:x 'q' %`, "and near a b col x q"},
	} {
		require.Equal(t, strings.Fields(c.want), append([]string{}, of(c.text)...), c.name)
	}
}

func TestOfStops(t *testing.T) {
	for _, text := range []string{"a b", "é é", "東京", "é", "xé 東"} {
		n := 0
		for range words.Of(text) {
			n++
			break
		}
		require.Equal(t, 1, n, text)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	const size = 8 << 20
	for _, part := range []string{"a", "é", "\u0301", "\xff", "東", "a\u0301"} {
		text := "x" + strings.Repeat(part, size/len(part))
		before, n := heap(), 0
		for range words.Of(text) {
			if n++; n%1_000_000 == 1 {
				require.Less(t, heap(), before+size/8, "%q", part)
			}
		}
		runtime.KeepAlive(text)
	}
}

// heap returns how much memory is in use.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func BenchmarkOf(b *testing.B) {
	for name, text := range map[string]string{
		"english": "The card was refused by charge_card: ETIMEDOUT after 30 s. ",
		"german":  "Die Karte wurde von der Prüfstelle zurückgewiesen: Zeitüberschreitung. ",
		"chinese": "信用卡在三十秒后被拒绝了。",
	} {
		text = strings.Repeat(text, 1000)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				for range words.Of(text) {
				}
			}
		})
	}
}

func TestJSON(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"keys and values", `{"caf\u00e9": ["x\ny", 1.50, true, null, {"k\"": -2}]}`, "café x y 1 50 true null k 2"},
		{"without escapes", `{"a":1}`, "a 1"},
		{"several values", `{"a":"\n1"} "b\tc"`, "a 1 b c"},
		{"cut off in a text", `{"a":"\u00e9t\u00e9","b":"rest of it`, "a été b rest of it"},
		{"cut off after a key", `{"a\n":`, "a"},
		{"no JSON", `C:\new [a]`, "c new a"},
		{"JSON and more", `["a\nb"] and C:\new`, "a nb and c new"},
		{"half a surrogate pair", `["a\ud800b"]`, "a b"},
	} {
		require.Equal(t, strings.Fields(c.want), of(words.JSON(c.text)), c.name)
	}
}

func FuzzOf(f *testing.F) {
	for _, text := range []string{"Charge_card ETIMEDOUT", "Straße 東京 か\u3099", "\xff\u0345\u0301a\u0345", strings.Repeat("\u0301", 70), "\u03b1\u0308\u0345", "\u1100\u1161\u11a8", "<\u0338"} {
		f.Add(text, "b")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		all := of(a)
		for _, w := range all {
			require.True(t, utf8.ValidString(w) && w != "" && utf8.RuneCountInString(w) <= words.Longest, "%q", w)
			require.Equal(t, []string{w}, of(w), "words of a word are the word")
		}
		require.Equal(t, all, of(norm.NFD.String(a)), "the form of the text does not matter")
		require.Equal(t, append(all, of(b)...), of(a+" "+b), "a blank divides")
		encoded, err := json.Marshal(map[string]string{a: b})
		require.NoError(t, err)
		require.Equal(t, append(of(strings.ToValidUTF8(a, " ")), of(b)...), of(words.JSON(string(encoded))), "%s", encoded)
	})
}
