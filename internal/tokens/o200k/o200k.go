// Package o200k estimates tokens with the vocabulary o200k_base and the pattern of pieces of OpenAI's
// tiktoken, by byte pair encoding. The vocabulary is a part of the program: nothing is fetched.
//
// github.com/tiktoken-go/tokenizer does the same and has the vocabulary as a Go map, which makes each
// program 5.7 MB larger. So it only writes the file here, and the tests compare with it.
package o200k

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// packed has all tokens in the order of their ranks, each after a byte with its length.
// TestVocabulary writes it.
//
//go:embed o200k_base.gz
var packed []byte

// vocabulary has the rank of each token. It is made when the first text is counted: that
// takes a moment, and most processes count none.
var vocabulary = sync.OnceValue(func() map[string]uint32 {
	rest := unpack(packed)
	ranks := make(map[string]uint32, len(rest)/8)
	for rest != "" {
		token := rest[1 : 1+rest[0]]
		ranks[token] = uint32(len(ranks))
		rest = rest[1+len(token):]
	}
	return ranks
})

// unpack panics if the program was built with a broken file.
func unpack(packed []byte) string {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		panic(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// pieces are parts of a text that share no token: words, up to three digits, signs, or
// white space.
var pieces = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(strings.NewReplacer(
		"FIRST", `[^\r\n\p{L}\p{N}]?`, "UPPER", `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, "LOWER", `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`,
		"END", `(?i:'s|'t|'re|'ve|'m|'ll|'d)?`, "SPACE", `\t-\r\x{85}\p{Z}`,
	).Replace(`^(?:FIRSTUPPER*LOWER+END|FIRSTUPPER+LOWER*END|\p{N}{1,3}| ?[^SPACE\p{L}\p{N}]+[\r\n/]*|[SPACE]*[\r\n]+|[SPACE]+)`))
})

// What is divided into pieces at once, and the part of a piece that is counted at once, in
// bytes: both take time by more than the length.
const (
	maxText  = 1 << 10
	maxPiece = 1 << 7
)

// Estimate is the estimator. A text may count a token more for each KiB without white space,
// and for each 128 bytes of a longer word.
func Estimate(text string) int {
	total := 0
	for text != "" {
		part := text[:cut(text, maxText)]
		text = text[len(part):]
		for part != "" {
			piece := part[:firstPiece(part)]
			piece = piece[:cut(piece, maxPiece)]
			part = part[len(piece):]
			total += count(piece)
		}
	}
	return total
}

// cut returns where a text may be parted: before the last white space of the first limit
// bytes, else between characters.
func cut(text string, limit int) int {
	if len(text) <= limit {
		return len(text)
	}
	if space := strings.LastIndexAny(text[:limit], " \n"); space > 0 {
		return space
	}
	n := limit
	for n > limit-utf8.UTFMax && !utf8.RuneStart(text[n]) {
		n--
	}
	return n
}

// firstPiece returns the length of a text's first piece. The last character of white space
// goes to the word behind it.
func firstPiece(text string) int {
	n := pieces().FindStringIndex(text)[1]
	last, size := utf8.DecodeLastRuneInString(text[:n])
	if n == len(text) || size == n || last == '\r' || last == '\n' || strings.TrimSpace(text[:n]) != "" {
		return n
	}
	return n - size
}

// count returns the number of tokens of a piece. It begins with single bytes, and merges the
// two neighbours whose merged token has the lowest rank until no two make a token.
func count(piece string) int {
	ranks := vocabulary()
	if _, ok := ranks[piece]; ok {
		return 1
	}
	type part struct{ start, rank int } // rank is that of this part merged with the next
	parts := make([]part, len(piece)+1)
	for i := range parts {
		parts[i].start = i
	}
	rate := func(i int) {
		if i < 0 {
			return
		}
		parts[i].rank = math.MaxInt
		if i+2 < len(parts) {
			if rank, ok := ranks[piece[parts[i].start:parts[i+2].start]]; ok {
				parts[i].rank = int(rank)
			}
		}
	}
	for i := range parts {
		rate(i)
	}
	for {
		lowest := 0
		for i := range parts {
			if parts[i].rank < parts[lowest].rank {
				lowest = i
			}
		}
		if parts[lowest].rank == math.MaxInt {
			return len(parts) - 1
		}
		parts = slices.Delete(parts, lowest+1, lowest+2)
		rate(lowest)
		rate(lowest - 1)
	}
}
