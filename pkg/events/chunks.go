package events

// Chunks is how the text of a reply came: for each part the milliseconds since the
// call began, and how many bytes of the text it has. The bytes add up to the text.
type Chunks [][2]int64

// ChunksOf returns a reply's text and how it came; no chunks where that was not
// recorded, or does not fit the text.
func ChunksOf(p Payload) (text string, chunks Chunks) {
	r := modelReplyOf(p)
	switch {
	case r.text == nil:
		return "", nil
	case !r.chunks.fit(*r.text):
		return *r.text, nil
	}
	return *r.text, *r.chunks
}

// SetChunks notes in a reply that is about to be written how its text came, where
// that fits the text.
func SetChunks(p Payload, chunks Chunks) {
	if r := modelReplyOf(p); r.text != nil && chunks.fit(*r.text) {
		*r.chunks = chunks
	}
}

// fit reports whether the parts are those of the text: they add up to it, none is
// empty, and none comes before the one before it.
func (c Chunks) fit(text string) bool {
	last, sum := int64(0), int64(0)
	for _, part := range c {
		if part[0] < last || part[1] <= 0 {
			return false
		}
		last, sum = part[0], sum+part[1]
	}
	return sum == int64(len(text))
}
