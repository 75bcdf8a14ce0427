package filelog

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"unicode/utf8"

	"github.com/moorebus/moorebus/pkg/journal"
)

// maxLine bounds a line in bytes: the largest body as base64, and its subject.
const maxLine = 4 << 20

// line is the stored form of a record. Keys may be added, never changed: files
// outlive the program.
type line struct {
	Subject string          `json:"subject"`
	Seq     uint64          `json:"seq"`
	Body    json.RawMessage `json:"body,omitempty"`
	Base64  *[]byte         `json:"body_base64,omitempty"`
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
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	var l line
	if err := dec.Decode(&l); err != nil {
		return journal.Record{}, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return journal.Record{}, errors.New("something follows the object")
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

// Write writes the records as lines and returns the first error, of the records
// or of the writer.
func Write(w io.Writer, records iter.Seq2[journal.Record, error]) error {
	out := bufio.NewWriter(w)
	var buf []byte
	for rec, err := range records {
		if err == nil {
			buf, err = appendLine(buf[:0], rec)
		}
		if err == nil {
			_, err = out.Write(buf)
		}
		if err != nil {
			// What was complete before the error is worth having.
			return errors.Join(fmt.Errorf("write events: %w", err), out.Flush())
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write events: %w", err)
	}
	return nil
}

// readLine reads a line with its newline, or what is left without one.
func readLine(r *bufio.Reader) ([]byte, error) {
	var text []byte
	for {
		part, err := r.ReadSlice('\n')
		text = append(text, part...)
		if len(text) > maxLine {
			return nil, fmt.Errorf("longer than %d bytes", maxLine)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return text, err
		}
	}
}
