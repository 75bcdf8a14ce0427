// Package recordline is the form of a record as one line of JSON: {"subject", "seq", "body"}, the
// body byte for byte. A body that is not JSON on a single line, without space around it and in
// valid UTF-8, is "body_base64" instead. Exports consist of such lines, and gateways answer with
// them.
package recordline

import (
	"bytes"
	"encoding/json"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/codec"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Max bounds a record's line in bytes: the largest body as base64, and its subject.
const Max = 4 << 20

// line is the stored form of a record. Keys may be added, never changed: files
// outlive the program.
type line struct {
	Subject string          `json:"subject"`
	Seq     uint64          `json:"seq"`
	Stored  *time.Time      `json:"stored,omitempty"`
	Body    json.RawMessage `json:"body,omitempty"`
	Base64  *[]byte         `json:"body_base64,omitempty"`
}

// Append appends a record's line, with its newline, and returns the result. The error is that of
// a subject that JSON cannot hold.
func Append(to []byte, rec journal.Record) ([]byte, error) {
	return appendLine(to, line{Subject: rec.Subject, Seq: rec.Seq}, rec)
}

// AppendStored is Append with a key "stored" as well: when the log took the record.
func AppendStored(to []byte, rec journal.Record) ([]byte, error) {
	return appendLine(to, line{Subject: rec.Subject, Seq: rec.Seq, Stored: &rec.Stored}, rec)
}

func appendLine(to []byte, l line, rec journal.Record) ([]byte, error) {
	// The body is put in by hand: the encoder would change it.
	head, err := json.Marshal(l)
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

// Parse reads a line, with or without its newline. What is no record's line is an error.
func Parse(text []byte) (journal.Record, error) {
	var l line
	if err := codec.Strict(text, &l); err != nil {
		return journal.Record{}, err
	}
	rec := journal.Record{Subject: l.Subject, Seq: l.Seq, Body: l.Body}
	if l.Stored != nil {
		rec.Stored = *l.Stored
	}
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
