package ollama

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
)

// The types of values in a GGUF file of version 3.
const (
	ggufUint32 uint32 = 4
	ggufInt32  uint32 = 5
	ggufFloat  uint32 = 6
	ggufBool   uint32 = 7
	ggufString uint32 = 8
	ggufArray  uint32 = 9
)

// setting is one entry of a GGUF file's metadata.
type setting struct {
	key   string
	value any
}

// tensor is one tensor of a GGUF file. The length of a row is first in its shape.
type tensor struct {
	name  string
	shape []uint64
	data  []float32
	// half stores 16 bits for each number. They must be zero or normal there; what does not
	// fit is cut off.
	half bool
}

// align is the boundary of tensors in the file, in bytes.
const align = 32

// gguf returns the bytes of a file.
func gguf(settings []setting, tensors []tensor) []byte {
	w := &ggufWriter{}
	w.WriteString("GGUF")
	w.put(uint32(3), uint64(len(tensors)), uint64(len(settings)))
	for _, s := range settings {
		w.text(s.key)
		w.value(s.value)
	}
	offset := uint64(0)
	var bodies [][]byte
	for _, t := range tensors {
		body, kind := t.encode()
		w.text(t.name)
		w.put(uint32(len(t.shape)), t.shape, kind, offset)
		offset += uint64(len(body))
		bodies = append(bodies, body)
	}
	w.Write(padding(w.Len()))
	for _, body := range bodies {
		w.Write(body)
	}
	return w.Bytes()
}

type ggufWriter struct{ bytes.Buffer }

func (w *ggufWriter) put(values ...any) {
	for _, v := range values {
		if err := binary.Write(w, binary.LittleEndian, v); err != nil {
			panic(err) // a type that has no size
		}
	}
}

func (w *ggufWriter) text(s string) {
	w.put(uint64(len(s)))
	w.WriteString(s)
}

func (w *ggufWriter) value(value any) {
	switch v := value.(type) {
	case string:
		w.put(ggufString)
		w.text(v)
	case bool:
		w.put(ggufBool, v)
	case uint32:
		w.put(ggufUint32, v)
	case float32:
		w.put(ggufFloat, v)
	case []int32:
		w.put(ggufArray, ggufInt32, uint64(len(v)), v)
	case []float32:
		w.put(ggufArray, ggufFloat, uint64(len(v)), v)
	case []string:
		w.put(ggufArray, ggufString, uint64(len(v)))
		for _, s := range v {
			w.text(s)
		}
	default:
		panic(fmt.Sprintf("no GGUF type for %T", v))
	}
}

// encode returns the tensor's bytes up to the next boundary, and the type of its numbers.
func (t tensor) encode() (body []byte, kind uint32) {
	var w ggufWriter
	if !t.half {
		w.put(t.data)
		return append(w.Bytes(), padding(w.Len())...), 0
	}
	for _, f := range t.data {
		w.put(half(f))
	}
	return append(w.Bytes(), padding(w.Len())...), 1
}

func padding(size int) []byte { return make([]byte, (align-size%align)%align) }

// half returns the bits of a number with 16 bits.
func half(f float32) uint16 {
	if f == 0 {
		return 0
	}
	bits := math.Float32bits(f)
	exponent := bits>>23&0xff - 127 + 15
	return uint16(bits>>16&0x8000 | exponent<<10 | bits>>13&0x3ff)
}
