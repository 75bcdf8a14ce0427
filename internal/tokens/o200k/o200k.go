// Package o200k estimates tokens with the vocabulary o200k_base. The vocabulary
// is a part of the program: nothing is fetched.
package o200k

import (
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/tiktoken-go/tokenizer/codec"

	"github.com/moorebus/moorebus/internal/tokens"
)

// vocabulary is made when the first text is counted: that takes a moment, and most
// processes count none.
var vocabulary = sync.OnceValue(codec.NewO200kBase)

// piece bounds what is counted at once, in bytes. A single word takes time by more
// than its length.
const piece = 1 << 10

// Estimate is the estimator. A text that breaks off within a long run of bytes
// without white space may count a token more for each KiB. What the vocabulary
// cannot take is counted by the rule of thumb.
func Estimate(text string) int {
	total := 0
	for len(text) > 0 {
		n := cut(text)
		count, err := vocabulary().Count(text[:n])
		if err != nil {
			count = tokens.ByBytes4(text[:n])
		}
		total += count
		text = text[n:]
	}
	return total
}

// cut returns where a text may be parted: before the last white space of the
// first piece, else between characters.
func cut(text string) int {
	if len(text) <= piece {
		return len(text)
	}
	if space := strings.LastIndexAny(text[:piece], " \n"); space > 0 {
		return space
	}
	n := piece
	for n > piece-utf8.UTFMax && !utf8.RuneStart(text[n]) {
		n--
	}
	return n
}
