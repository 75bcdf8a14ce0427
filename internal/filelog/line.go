package filelog

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

const (
	// maxLine bounds a record's line in bytes: the largest body as base64, and its
	// subject. maxObjectLine bounds an object's.
	maxLine       = 4 << 20
	maxObjectLine = 1 << 30
	// objectLine is how an object's line begins.
	objectLine = `{"blob":`
)

// line is the stored form of a record. Keys may be added, never changed: files
// outlive the program.
type line struct {
	Subject string          `json:"subject"`
	Seq     uint64          `json:"seq"`
	Body    json.RawMessage `json:"body,omitempty"`
	Base64  *[]byte         `json:"body_base64,omitempty"`
}

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
	if err := decode(text, &o); err != nil {
		return o, err
	}
	if len(o.Data) != o.Blob.Size || events.Hash(o.Data) != o.Blob.SHA256 {
		return o, fmt.Errorf("the data of object %s has another size or digest than it says", o.Blob.Key)
	}
	return o, nil
}

// decode reads one JSON object without unknown keys.
func decode(text []byte, to any) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(to); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the object")
	}
	return nil
}

// appendLine appends a record's line, with its newline.
func appendLine(to []byte, rec journal.Record) ([]byte, error) {
	// The body is put in by hand: the encoder would change it.
	head, err := json.Marshal(line{Subject: rec.Subject, Seq: rec.Seq})
	if err != nil {
		return to, err
	}
	to = append(to, head[:len(head)-1]...)
	if plain(rec.Body) {
		to = append(to, `,"body":`...)
		to = append(to, rec.Body...)
		return append(to, '}', '\n'), nil
	}
	text, err := json.Marshal(rec.Body)
	if err != nil {
		return to, err
	}
	if rec.Body == nil {
		text = []byte(`""`)
	}
	to = append(to, `,"body_base64":`...)
	to = append(to, text...)
	return append(to, '}', '\n'), nil
}

// plain reports whether a body can stand in the line as it is.
func plain(body []byte) bool {
	return len(body) > 0 && !bytes.ContainsAny(body, "\r\n") && utf8.Valid(body) &&
		len(bytes.TrimSpace(body)) == len(body) && json.Valid(body)
}

// parseLine reads a line, with or without its newline.
func parseLine(text []byte) (journal.Record, error) {
	var l line
	if err := decode(text, &l); err != nil {
		return journal.Record{}, err
	}
	rec := journal.Record{Subject: l.Subject, Seq: l.Seq, Body: l.Body}
	switch {
	case l.Subject == "":
		return rec, errors.New("no subject")
	case l.Seq == 0:
		return rec, errors.New("no sequence number")
	case l.Body != nil && l.Base64 != nil:
		return rec, errors.New("both body and body_base64")
	case l.Base64 != nil:
		rec.Body = *l.Base64
	case l.Body == nil:
		return rec, errors.New("no body")
	}
	return rec, nil
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
	return maxLine
}
