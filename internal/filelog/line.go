package filelog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"

	"github.com/moorebus/moorebus/internal/codec"
	"github.com/moorebus/moorebus/internal/recordline"
	"github.com/moorebus/moorebus/pkg/events"
)

const (
	// maxObjectLine bounds an object's line in bytes.
	maxObjectLine = 1 << 30
	// objectLine is how an object's line begins.
	objectLine = `{"blob":`
)

// object is the stored form of a large result that records refer to. Its line
// begins with the key blob, which tells it from a record's.
type object struct {
	Blob events.Ref `json:"blob"`
	Data []byte     `json:"data"`
}

// isObject reports whether a line is an object's.
func isObject(text []byte) bool { return bytes.HasPrefix(text, []byte(objectLine)) }

// parseObject reads an object's line and checks the data against its digest.
func parseObject(text []byte) (object, error) {
	var o object
	if err := codec.Strict(text, &o); err != nil {
		return o, err
	}
	if len(o.Data) != o.Blob.Size || events.Hash(o.Data) != o.Blob.SHA256 {
		return o, fmt.Errorf("the data of object %s does not match its size or digest", o.Blob.Key)
	}
	return o, nil
}

// readLine reads a line with its newline, or what is left without one.
func readLine(r *bufio.Reader) ([]byte, error) {
	var text []byte
	for {
		part, err := r.ReadSlice('\n')
		text = append(text, part...)
		if limit := lineLimit(text); len(text) > limit {
			return nil, fmt.Errorf("longer than %d bytes", limit)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return text, err
		}
	}
}

func lineLimit(text []byte) int {
	if isObject(text) {
		return maxObjectLine
	}
	return recordline.Max
}
