package ports

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"github.com/klauspost/compress/s2"
)

// maxSnapshot bounds what a snapshot may unpack to, in bytes.
const maxSnapshot = 1 << 30

// Encode returns the snapshot in its stored form: as JSON on a line, and behind that its
// memory, which is read apart. Both are packed with S2, since somebody waits for the run
// that is read, and gzip takes longer to unpack than the memory to read.
func (s Snapshot) Encode() ([]byte, error) {
	var buf bytes.Buffer
	zip := s2.NewWriter(&buf, s2.WriterConcurrency(1))
	memory := s.Memory
	s.Memory = nil
	if err := json.NewEncoder(zip).Encode(s); err != nil {
		return nil, err
	}
	if _, err := zip.Write(memory); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// DecodeSnapshot reads what Encode wrote.
func DecodeSnapshot(data []byte) (s Snapshot, err error) {
	if bytes.HasPrefix(data, []byte{0x1f, 0x8b}) { // gzip's
		return s, errors.New("it was written by an older Moorebus; the next snapshot of the run replaces it")
	}
	size := unpackedSize(data)
	if size > maxSnapshot {
		return s, errors.New("it unpacks to more than 1 GiB")
	}
	text := make([]byte, size)
	zip := s2.NewReader(bytes.NewReader(data))
	if _, err := io.ReadFull(zip, text); err != nil {
		return s, err
	}
	if _, err := zip.ReadByte(); !errors.Is(err, io.EOF) {
		return s, errors.Join(errors.New("it unpacks to more than it says"), err)
	}
	head, memory, _ := bytes.Cut(text, []byte("\n"))
	if err := json.Unmarshal(head, &s); err != nil {
		return s, err
	}
	s.Memory = memory
	return s, nil
}

// unpackedSize is how much the blocks of a stream say that they unpack to, at most a
// little more than maxSnapshot. Each has a kind, a length of three bytes, and, if it
// holds data, a checksum of four before that.
func unpackedSize(data []byte) (size int) {
	const packed, plain, checksum = 0, 1, 4
	for len(data) >= 4 && size <= maxSnapshot {
		kind, n := data[0], int(data[1])|int(data[2])<<8|int(data[3])<<16
		if data = data[4:]; n > len(data) {
			break // which reading it says as well
		}
		switch {
		case n < checksum:
		case kind == plain:
			size += n - checksum
		case kind == packed:
			if length, err := s2.DecodedLen(data[checksum:n]); err == nil {
				size += length
			}
		}
		data = data[n:]
	}
	return size
}
