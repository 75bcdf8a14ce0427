package codec

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/bits"
	"strconv"
	"strings"
)

// reader reads a text, which is valid UTF-8. The first thing that is not in the
// canonical form makes it bad; from then on nothing that it returns means anything.
type reader struct {
	text []byte
	at   int
	bad  bool
	// words holds strings that were read, many in one piece of memory: they come and
	// go together. piece is the size of that memory in bytes.
	words strings.Builder
	piece int
}

// check makes the reader bad unless ok.
func (r *reader) check(ok bool) { r.bad = r.bad || !ok }

// has reads word if it comes next, and reports whether it did.
func (r *reader) has(word string) bool {
	if rest := r.text[r.at:]; len(rest) < len(word) || string(rest[:len(word)]) != word {
		return false
	}
	r.at += len(word)
	return true
}

// want reads word, which must come next.
func (r *reader) want(word string) { r.check(r.has(word)) }

func (r *reader) number() []byte {
	start := r.at
	for r.at < len(r.text) && isNumeric(r.text[r.at]) {
		r.at++
	}
	return r.text[start:r.at]
}

func isNumeric(c byte) bool {
	return '0' <= c && c <= '9' || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E'
}

// value reads a value, of which only the end is searched.
func (r *reader) value() []byte {
	start := r.at
	r.at = skipValue(r.text, start)
	r.check(r.at > start)
	return r.text[start:r.at]
}

// maxNested bounds how much may be nested in a value that is taken unread. Package
// json counts the depth from the outermost value, and refuses twice as much.
const maxNested = 5000

// valid reads a value that is JSON.
func (r *reader) valid() []byte {
	text := r.value()
	r.check(bytes.Count(text, []byte("{"))+bytes.Count(text, []byte("[")) <= maxNested && json.Valid(text))
	return text
}

// plain takes a string without escapes and returns what stands between its quotes,
// as a part of the text.
func (r *reader) plain() ([]byte, bool) {
	if at(r.text, r.at) != '"' {
		return nil, false
	}
	start := r.at + 1
	end := start + plainEnd(r.text[start:])
	if at(r.text, end) != '"' {
		return nil, false
	}
	r.at = end + 1
	return r.text[start:end], true
}

func (r *reader) string() string {
	if plain, ok := r.plain(); ok {
		into := r.memory(len(plain))
		start := into.Len()
		into.Write(plain)
		return into.String()[start:]
	}
	end := skipString(r.text, r.at)
	if end == r.at {
		r.bad = true
		return ""
	}
	quoted := r.text[r.at+1 : end-1]
	r.at = end
	into := r.memory(len(quoted))
	start := into.Len()
	for len(quoted) > 0 {
		n := plainEnd(quoted)
		into.Write(quoted[:n])
		if quoted = quoted[n:]; len(quoted) == 0 {
			break
		}
		if n = escape(into, quoted); n == 0 {
			r.bad = true
			return ""
		}
		quoted = quoted[n:]
	}
	return into.String()[start:]
}

// The least and the largest piece of memory that holds strings, in bytes.
const leastPiece, mostPiece = 320, 32 << 10

// memory returns where a string of up to n bytes is written. A string that takes more
// than half of a piece has one of its own: it would keep the others as long as itself.
func (r *reader) memory(n int) *strings.Builder {
	if r.words.Cap()-r.words.Len() >= n {
		return &r.words
	}
	rest := len(r.text) - r.at + n
	piece := min(max(2*r.piece, leastPiece), mostPiece, rest)
	if n > piece/2 {
		alone := new(strings.Builder)
		alone.Grow(n)
		return alone
	}
	r.piece = piece
	r.words = strings.Builder{}
	r.words.Grow(piece)
	return &r.words
}

// The escapes of one letter, and what each of them stands for.
const (
	escaped   = `"\/bfnrt`
	unescaped = "\"\\/\b\f\n\r\t"
)

// escape writes what the escape at the beginning of text stands for, and returns the
// length of the escape; 0 if it is none. Pairs of surrogates, which Go does not write,
// are left to package json.
func escape(into *strings.Builder, text []byte) int {
	if len(text) < 2 || text[0] != '\\' {
		return 0
	}
	if i := strings.IndexByte(escaped, text[1]); i >= 0 {
		into.WriteByte(unescaped[i])
		return 2
	}
	if text[1] != 'u' || len(text) < 6 {
		return 0
	}
	n, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil || n >= 0xd800 && n < 0xe000 {
		return 0
	}
	into.WriteRune(rune(n))
	return 6
}

// plainEnd returns where the text has the first quote, backslash or control
// character; its length if there is none. It looks at eight bytes at once.
func plainEnd(text []byte) int {
	const each, top = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; i+8 <= len(text); i += 8 {
		x := binary.LittleEndian.Uint64(text[i:])
		quote, backslash := x^each*'"', x^each*'\\'
		// The lowest bit that is set is right; the higher ones mean nothing.
		if special := ((x-each*0x20)&^x | (quote-each)&^quote | (backslash-each)&^backslash) & top; special != 0 {
			return i + bits.TrailingZeros64(special)/8
		}
	}
	for ; i < len(text); i++ {
		if c := text[i]; c < 0x20 || c == '"' || c == '\\' {
			return i
		}
	}
	return i
}
