package llm

import (
	"iter"
	"strings"
)

// Chunks returns the chunks of a complete reply: its text word by word, then each call
// with its name and all of its arguments. The ChunkText texts together are the reply's
// text. Callers with ready replies (scripted, recorded) stream with it.
func Chunks(r Response) iter.Seq[Chunk] {
	text, calls := parts(r)
	return func(yield func(Chunk) bool) {
		for word := range strings.SplitAfterSeq(text, " ") {
			if word != "" && !yield(Chunk{Kind: ChunkText, Text: word}) {
				return
			}
		}
		for i, c := range calls {
			if !yield(Chunk{Kind: ChunkToolCall, Index: i, Name: c.Name, Text: c.Arguments}) {
				return
			}
		}
	}
}

func parts(r Response) (text string, calls []Call) {
	switch r := r.(type) {
	case Text:
		return r.Content, nil
	case ToolCalls:
		return r.Content, r.Calls
	case Structured:
		return r.Content, nil
	}
	return "", nil
}
