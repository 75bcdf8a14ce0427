package events_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/moorebus/moorebus/pkg/events"
)

// FuzzDecode: decoding never panics, and what decodes is encoded to something
// that decodes to the same.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(golden))
	for typ, data := range full {
		f.Add(body(typ, data))
	}
	f.Add(body("Continue", `{"x":1e400}`))
	f.Add([]byte(golden[:len(golden)-1] + `,"later":[1,{"\u0061":"\ud800"}]}`))
	f.Add([]byte(`{"n":1}`))
	codec := events.DefaultCodec()
	f.Fuzz(func(t *testing.T, in []byte) {
		kept := bytes.Clone(in)
		e, err := codec.Decode(in)
		if !bytes.Equal(kept, in) {
			t.Fatal("decoding changed its argument")
		}
		if err != nil {
			return
		}
		if !json.Valid(in) {
			t.Fatal("what is no JSON was decoded")
		}
		out, err := codec.Encode(e)
		if err != nil {
			t.Fatalf("what was decoded does not encode: %v", err)
		}
		back, err := codec.Decode(out)
		if err != nil {
			t.Fatalf("what was encoded does not decode: %v\n%s", err, out)
		}
		if !reflect.DeepEqual(e.Data, back.Data) {
			t.Fatalf("data changed: %#v, %#v", e.Data, back.Data)
		}
		again, err := codec.Encode(back)
		if err != nil || !bytes.Equal(out, again) {
			t.Fatalf("encoding is not stable: %v\n%s\n%s", err, out, again)
		}
	})
}
