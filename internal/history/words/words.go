// Package words makes the words by which runs are found: those of texts and those of queries. Every store
// gets the same words, so all of them find the same runs.
//
// A text is brought into NFC and case-folded. Its words are then the maximal runs of letters, marks and
// digits; each character of Han, kana, Thai and Lao, which are written without blanks, is one word. Of a
// word only the first 64 characters count.
package words

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// Longest is how many characters of a word count.
const Longest = 64

// single are the characters of which each is one word. The two prolonged sound marks belong to kana, but
// Unicode assigns them to no script.
var single = []*unicode.RangeTable{
	unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao,
	{R16: []unicode.Range16{{Lo: 0x30FC, Hi: 0x30FC, Stride: 1}, {Lo: 0xFF70, Hi: 0xFF70, Stride: 1}}},
}

// Of yields the words of a text in order, also those that repeat. It needs the memory of one word however
// long the text is. Invalid UTF-8 divides words.
func Of(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		m := maker{yield: yield}
		for i := 0; i < len(text) && !m.stopped; {
			if end := i + ascii(text[i:]); end > i && m.count == 0 && (end == len(text) || text[end] < utf8.RuneSelf) {
				m.stopped = !yield(strings.ToLower(text[i:min(end, i+Longest)]))
				i = end
				continue
			}
			// No character before an ASCII one composes with it, so this part can be normalized alone.
			end := i + 1
			for end < len(text) && text[end] >= utf8.RuneSelf {
				end++
			}
			m.take(text[i:end])
			i = end
		}
		m.end()
	}
}

// ascii returns how many ASCII letters and digits a text begins with.
func ascii(text string) int {
	for i := range len(text) {
		if c := text[i]; (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return i
		}
	}
	return len(text)
}

// maker makes words of normalized characters.
type maker struct {
	yield   func(string) bool
	stopped bool
	word    []byte // what counts of the word that has begun
	count   int    // the characters of word
	part    norm.Iter
	folded  [4 * utf8.UTFMax * 64]byte // a segment of normalized characters has at most 32
}

// fold has no state.
var fold = cases.Fold()

// take adds the characters of a text that composes with nothing before or after it.
func (m *maker) take(text string) {
	if c := text[0]; len(text) == 1 && c < utf8.RuneSelf {
		m.add(unicode.ToLower(rune(c)))
		return
	}
	for m.part.InitString(norm.NFC, text); !m.part.Done() && !m.stopped; {
		n, _, err := fold.Transform(m.folded[:], m.part.Next(), true)
		folded := m.folded[:n]
		if err != nil {
			panic(err) // the buffer has room for the longest
		}
		if !norm.NFC.IsNormal(folded) { // folding decomposes some characters
			folded = norm.NFC.Bytes(folded)
		}
		for len(folded) > 0 {
			r, size := utf8.DecodeRune(folded)
			m.add(r)
			folded = folded[size:]
		}
	}
}

// add adds a character to the word that has begun, or ends the word.
func (m *maker) add(r rune) {
	switch {
	case m.stopped:
	case r < utf8.RuneSelf && (r < '0' || r > '9') && (r < 'a' || r > 'z'):
		m.end()
	case r >= utf8.RuneSelf && unicode.In(r, single...):
		m.end()
		m.stopped = m.stopped || !m.yield(string(r))
	case r >= utf8.RuneSelf && !unicode.In(r, unicode.L, unicode.M, unicode.Nd):
		m.end()
	case m.count < Longest:
		m.word = utf8.AppendRune(m.word, r)
		m.count++
	}
}

// end yields the word that has begun.
func (m *maker) end() {
	if m.count > 0 && !m.stopped {
		m.stopped = !m.yield(string(m.word))
	}
	m.word, m.count = m.word[:0], 0
}

// JSON returns a text with the words of a JSON text: its keys and its decoded values. Other texts are
// returned as they are. JSON may be cut off anywhere, and may be several values.
func JSON(text string) string {
	if !strings.Contains(text, `\`) {
		return text // the words are the same
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var decoded strings.Builder
	for {
		switch token, err := decoder.Token(); token := token.(type) {
		case json.Delim:
		case nil:
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return decoded.String() + text[decoder.InputOffset():]
			} else if err != nil {
				return text
			}
			decoded.WriteString("null\n")
		default:
			fmt.Fprintln(&decoded, token)
		}
	}
}
