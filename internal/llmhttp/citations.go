package llmhttp

import (
	"encoding/json"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
)

// maxQuote bounds the quoted passage of a citation, in characters, and maxCitations how many
// a reply has.
const (
	maxQuote     = 500
	maxCitations = 256
)

// source is a citation in the words of any of the APIs.
type source struct {
	Type          Word    `json:"type"`
	URL           Word    `json:"url"`
	Source        Word    `json:"source"`
	Title         Word    `json:"title"`
	DocumentTitle Word    `json:"document_title"`
	Filename      Word    `json:"filename"`
	FileID        Word    `json:"file_id"`
	CitedText     Word    `json:"cited_text"`
	Content       Word    `json:"content"`
	Start         Number  `json:"start_index"`
	End           Number  `json:"end_index"`
	Nested        *source `json:"url_citation"`
}

// Cite adds the citations of a text that stands from the given character of the reply on and
// has that many characters. What is none is omitted. Places that the API gives count from
// the text's beginning; a citation without them is one of all of the text.
func Cite(to []events.Citation, list json.RawMessage, start, length int) []events.Citation {
	var all []json.RawMessage
	_ = json.Unmarshal(list, &all) // null or absent where there are none
	for _, one := range all {
		var s source
		if json.Unmarshal(one, &s) != nil || len(to) >= maxCitations {
			continue
		}
		kind := s.Type
		if s.Nested != nil { // chat completions
			s = *s.Nested
		}
		if kind == "" {
			continue
		}
		c := events.Citation{Type: string(kind), URL: first(s.URL, s.Source), Title: first(s.Title, s.DocumentTitle, s.Filename, s.FileID), Quote: first(s.CitedText, s.Content)}
		if !strings.Contains(c.URL, "://") { // a source may have another name
			c.Title, c.URL = first(Word(c.Title), Word(c.URL)), ""
		}
		if quote := []rune(c.Quote); len(quote) > maxQuote {
			c.Quote = string(quote[:maxQuote-1]) + "…"
		}
		c.Start, c.End = start, start+length
		if at, end := s.Start.Count(), s.End.Count(); end > at && end <= length {
			c.Start, c.End = start+at, start+end
		}
		to = append(to, c)
	}
	return to
}

func first(all ...Word) string {
	for _, w := range all {
		if w != "" {
			return string(w)
		}
	}
	return ""
}
