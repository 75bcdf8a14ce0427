package contextedit

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/truncate"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// readResult is the tool that reads results which were too large for the log.
const readResult = events.ReservedPrefix + "result"

const (
	// pieceBytes is how much of a result is read at once by default, and at most.
	pieceBytes     = 16 << 10
	mostPieceBytes = 64 << 10
	// resultBytes bounds a result that can be read, in bytes: it is loaded whole.
	resultBytes = 64 << 20
	// cutListed is how many results are listed.
	cutListed = 20
)

func resultTool() llm.Tool {
	return llm.Tool{
		Name: readResult,
		Description: "Reads a piece of the result of an earlier tool call that was too large and was cut. " +
			"Without call_id it lists those results, newest first.",
		Schema: json.RawMessage(fmt.Sprintf(`{"type":"object","properties":{`+
			`"call_id":{"type":"string","description":"the id of the call"},`+
			`"offset":{"type":"integer","minimum":0,"description":"where the piece begins, in bytes, default 0"},`+
			`"limit":{"type":"integer","minimum":1,"maximum":%d,"description":"how many bytes to read, default %d"},`+
			`"find":{"type":"string","minLength":1,"description":"begin at the first place at or after offset that has this text"}},"additionalProperties":false}`,
			mostPieceBytes, pieceBytes)),
	}
}

// hasCut reports whether the run has a truncated result whose complete text is stored.
func hasCut(mem *reducer.Memory) bool {
	for _, record := range mem.ToolCalls {
		if record.Ref != nil {
			return true
		}
	}
	return false
}

// cutResult is a call whose result was cut.
type cutResult struct {
	id, name, arguments string
	ref                 events.Ref
}

// cut are the results that the calls of one reply may read.
type cut struct {
	// blob reads from the object store; nil without an error: it is not there.
	blob   func(ref events.Ref) ([]byte, error)
	wanted map[string]cutResult
	newest []cutResult
	more   int
}

func cutOf(id string, record *reducer.ToolCallRecord) cutResult {
	return cutResult{id, record.Name, record.Parameters, *record.Ref}
}

// want copies what a call needs, under the run's lock.
func (c *cut) want(mem *reducer.Memory, known *listed, arguments string) {
	id := resultArguments(arguments).CallID
	if id != "" {
		if record := mem.ToolCalls[known.as(id)]; record != nil && record.Ref != nil {
			c.wanted[id] = cutOf(known.as(id), record)
		}
		return
	}
	c.newest, c.more = nil, 0
	for i := len(mem.Control.CallOrder) - 1; i >= 0; i-- {
		id := mem.Control.CallOrder[i]
		switch record := mem.ToolCalls[id]; {
		case record == nil || record.Ref == nil:
		case len(c.newest) == cutListed:
			c.more++
		default:
			c.newest = append(c.newest, cutOf(id, record))
		}
	}
}

type resultQuery struct {
	CallID string `json:"call_id"`
	// A schema's integer may be written 5.0.
	Offset float64 `json:"offset"`
	Limit  float64 `json:"limit"`
	Find   string  `json:"find"`
}

func resultArguments(text string) resultQuery {
	q := resultQuery{Limit: pieceBytes}
	arguments(text, &q)
	return q
}

// result answers a call of the tool. room is how much may still be shown, in bytes; it returns
// what is left.
func (c *cut) result(text string, room int) (answer, code string, left int) {
	q := resultArguments(text)
	if q.CallID == "" {
		return c.list(), codes.OK, room
	}
	fail := func(code, format string, args ...any) (string, string, int) {
		return codes.ErrorPrefix + fmt.Sprintf(format, args...), code, room
	}
	of, known := c.wanted[q.CallID]
	switch {
	case !known:
		return fail(tool.CodeNotFound, "no result of a call %.100q was cut; %s without call_id lists those that were", q.CallID, readResult)
	case of.ref.Size > resultBytes:
		return fail(codes.TooLarge, "the result has %d bytes; at most %d can be read", of.ref.Size, resultBytes)
	}
	data, err := c.read(of.ref)
	if err != nil {
		return fail(tool.CodeFailed, "the result could not be read: %s", Clip(maxSaid, err.Error()))
	}
	begin := int(min(q.Offset, float64(len(data))))
	if q.Find != "" {
		at := strings.Index(data[begin:], q.Find)
		if at < 0 {
			return fail(tool.CodeNotFound, "the result has no such text from byte %d on", begin)
		}
		begin += at
	}
	for begin > 0 && begin < len(data) && !utf8.RuneStart(data[begin]) {
		begin--
	}
	piece := truncate.Prefix(data[begin:], int64(min(int(q.Limit), mostPieceBytes, room)))
	if piece == "" && begin < len(data) {
		return fail(codes.TooLarge, "%s", tooLarge)
	}
	end := begin + len(piece)
	answer = fmt.Sprintf("Bytes %d to %d of %d:\n%s", begin, end, len(data), strings.ToValidUTF8(piece, "\uFFFD"))
	if end < len(data) {
		answer += fmt.Sprintf("\n[%d more bytes; continue with offset %d]", len(data)-end, end)
	}
	return answer, codes.OK, room - len(piece)
}

func (c *cut) read(ref events.Ref) (string, error) {
	if c.blob == nil {
		return "", errors.New("there is no object store")
	}
	data, err := c.blob(ref)
	if err == nil && data == nil {
		err = errors.New("it is not stored any more")
	}
	return string(data), err
}

func (c *cut) list() string {
	type entry struct {
		ID        string `json:"id"`
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
		Bytes     int    `json:"bytes"`
	}
	list := struct {
		Results []entry `json:"results"`
		More    int     `json:"more"`
	}{Results: []entry{}, More: c.more}
	for _, r := range c.newest {
		list.Results = append(list.Results, entry{Clip(listedID, r.id), r.name, Clip(searchArguments, r.arguments), r.ref.Size})
	}
	return inJSON(list)
}
