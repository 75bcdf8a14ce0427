package events

import (
	"encoding/binary"
	"encoding/json"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner reads JSON in the one form in which this package writes it: members in
// their order, no white space, no member that is unknown or stands there twice.
// The first thing that is different makes it bad, and from then on what it
// returns means nothing: whoever uses it then leaves the text to package json. It
// takes nothing that package json refuses and makes the same of what it takes, so
// no caller can see which of the two read a text.
//
// The text must be valid UTF-8.
type scanner struct {
	text []byte
	at   int
	bad  bool
	// words holds the strings that were read, so that they need one allocation
	// for all.
	words strings.Builder
}

// has takes what comes next if it is word.
func (s *scanner) has(word string) bool {
	if rest := s.text[s.at:]; len(rest) < len(word) || string(rest[:len(word)]) != word {
		return false
	}
	s.at += len(word)
	return true
}

// want takes word, which must come next.
func (s *scanner) want(word string) {
	if !s.has(word) {
		s.bad = true
	}
}

// end reports whether all was read, and was good.
func (s *scanner) end() bool { return !s.bad && s.at == len(s.text) }

// plain takes a string without escapes and returns what stands between its
// quotes, as a part of the text.
func (s *scanner) plain() []byte {
	s.want(`"`)
	start := s.at
	end := plainEnd(s.text, start)
	if s.bad || at(s.text, end) != '"' {
		s.bad = true
		return nil
	}
	s.at = end + 1
	return s.text[start:end]
}

// string takes a string.
func (s *scanner) string() string {
	s.want(`"`)
	if s.bad {
		return ""
	}
	first := s.words.Len()
	for !s.bad {
		end := plainEnd(s.text, s.at)
		s.words.Write(s.text[s.at:end])
		s.at = end
		if s.has(`"`) {
			return s.words.String()[first:]
		}
		s.escape()
	}
	return ""
}

// plainEnd returns where the text has the first byte from i on that is a quote, a
// backslash or a control character; its length if there is none.
func plainEnd(text []byte, i int) int {
	for ; i+8 <= len(text); i += 8 {
		if special := specials(binary.LittleEndian.Uint64(text[i:])); special != 0 {
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

const (
	eachByte = 0x0101010101010101
	topBits  = eachByte * 0x80
)

// specials looks at eight bytes at once. Its lowest bit that is set is the top bit
// of the first of them that does not stand for itself within a JSON string; the
// higher bits mean nothing.
func specials(x uint64) uint64 {
	quote, backslash := x^eachByte*'"', x^eachByte*'\\'
	return ((x-eachByte*0x20)&^x | (quote-eachByte)&^quote | (backslash-eachByte)&^backslash) & topBits
}

// escape takes one escape within a string.
func (s *scanner) escape() {
	if at(s.text, s.at) != '\\' {
		s.bad = true
		return
	}
	c := at(s.text, s.at+1)
	i := strings.IndexByte(escaped, c)
	if i < 0 || c == 0 {
		s.bad = true
		return
	}
	s.at += 2
	if c == 'u' {
		s.words.WriteRune(s.codePoint())
	} else {
		s.words.WriteByte(unescaped[i])
	}
}

// What may follow a backslash, and what each of them stands for.
const (
	escaped   = `"\/bfnrtu`
	unescaped = "\"\\/\b\f\n\r\t"
)

// codePoint takes what follows `\u`, and the second half of a surrogate pair with
// it. Half a pair alone is U+FFFD.
func (s *scanner) codePoint() rune {
	r := s.hex4()
	if !utf16.IsSurrogate(r) {
		return r
	}
	before := s.at
	if s.has(`\u`) {
		if pair := utf16.DecodeRune(r, s.hex4()); pair != utf8.RuneError {
			return pair
		}
		s.at = before // what follows stands for itself
	}
	return utf8.RuneError
}

func (s *scanner) hex4() rune {
	if len(s.text)-s.at < 4 {
		s.bad = true
		return 0
	}
	var r rune
	for _, c := range s.text[s.at : s.at+4] {
		switch {
		case '0' <= c && c <= '9':
			r = r<<4 | rune(c-'0')
		case 'a' <= c && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case 'A' <= c && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			s.bad = true
		}
	}
	s.at += 4
	return r
}

// integer takes an integer of up to 18 digits; a longer one is bad.
func (s *scanner) integer() int64 {
	negative := s.has("-")
	start, n := s.at, int64(0)
	for s.at < len(s.text) && s.at < start+19 && '0' <= s.text[s.at] && s.text[s.at] <= '9' {
		n = n*10 + int64(s.text[s.at]-'0')
		s.at++
	}
	digits := s.at - start
	if digits == 0 || digits > 18 || (digits > 1 && s.text[start] == '0') {
		s.bad = true
	}
	switch at(s.text, s.at) {
	case '.', 'e', 'E':
		s.bad = true
	}
	if negative {
		return -n
	}
	return n
}

// small takes an integer that is an int on every machine.
func (s *scanner) small() int {
	n := s.integer()
	if n != int64(int32(n)) {
		s.bad = true
	}
	return int(n)
}

// float takes a number.
func (s *scanner) float() float64 {
	start := s.at
	for s.at < len(s.text) && isNumeric(s.text[s.at]) {
		s.at++
	}
	number := s.text[start:s.at]
	if len(number) == 1 && '0' <= number[0] && number[0] <= '9' {
		return float64(number[0] - '0')
	}
	if !json.Valid(number) {
		s.bad = true
		return 0
	}
	f, err := strconv.ParseFloat(string(number), 64)
	if err != nil {
		s.bad = true
	}
	return f
}

func isNumeric(c byte) bool {
	return '0' <= c && c <= '9' || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E'
}

func (s *scanner) bool() bool {
	if s.has("true") {
		return true
	}
	s.want("false")
	return false
}

// rawLimit bounds what raw takes: package json refuses what is nested too deep,
// and so much text cannot be.
const rawLimit = 8 << 10

// raw takes any value but null and returns a copy of its text.
func (s *scanner) raw() json.RawMessage {
	value := s.text[s.at:min(skipValue(s.text, s.at), len(s.text))]
	if len(value) > rawLimit || at(value, 0) == 'n' || !json.Valid(value) {
		s.bad = true
		return nil
	}
	s.at += len(value)
	return append(json.RawMessage(nil), value...)
}

// list takes an array, each element by read, and returns how many it has; -1 for
// null.
func (s *scanner) list(read func()) int {
	if s.has("null") {
		return -1
	}
	s.want("[")
	if s.has("]") {
		return 0
	}
	for n := 1; !s.bad; n++ {
		read()
		if s.has("]") {
			return n
		}
		s.want(",")
	}
	return 0
}
