package route

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/refusal"
)

// Op is a request of the API, stated once: its row describes it and registers its handler, and
// [Op.Call] sends it.
//
// In is a struct of what is sent. Its fields have one of these tags; embedded structs have such
// their own fields:
//
//   - path:"name": a part of the path,
//   - query:"name" doc:"what it does": a parameter of the query,
//   - query:"*": several of them, a [ParameterMap],
//   - header:"Name" doc:"what it does": a header; a list has each value that is given,
//   - body:"": the body, a struct that is JSON, or a [BodyReader].
//
// Parameters are strings, numbers from 1, bools, times (RFC 3339) and floats. What is zero is not
// sent; a pointer tells zero from what is not given. Out is what the answer holds: JSON, or bytes
// as they are. It may have headers too, with the methods SetHeader and ReadHeader of an [http.Header]. S is
// what answers it: the core, or a feature.
type Op[S, In, Out any] struct {
	Stream[In]
	do      func(ctx context.Context, s S, in In) (Out, error)
	locates func(Out) string
}

// Define returns the request of a row. Query, Headers, Body and Answer follow from In and Out where the
// row does not have them.
func Define[S, In, Out any](row Route, do func(ctx context.Context, s S, in In) (Out, error)) *Op[S, In, Out] {
	o := &Op[S, In, Out]{Stream: *DefineStream[In](row), do: do}
	out := reflect.TypeFor[Out]()
	if out.Kind() == reflect.Pointer {
		out = out.Elem()
	}
	if o.row.Answer == nil && out != reflect.TypeFor[[]byte]() {
		o.row.Answer = reflect.Zero(out).Interface()
	}
	return o
}

// Locates says where the answer's header Location points to.
func (o *Op[S, In, Out]) Locates(at func(Out) string) *Op[S, In, Out] {
	o.locates = at
	return o
}

// Row returns the request with its handler.
func (o *Op[S, In, Out]) Row(s S) Route {
	return o.Stream.Row(func(w http.ResponseWriter, r *http.Request, in In) error {
		out, err := o.do(r.Context(), s, in)
		if err != nil {
			return err
		}
		if o.locates != nil {
			w.Header().Set("Location", o.locates(out))
		}
		if a, is := any(out).(interface{ SetHeader(http.Header) }); is {
			a.SetHeader(w.Header())
		}
		return writeAnswer(w, cmp.Or(o.row.Status, http.StatusOK), out)
	})
}

// writeAnswer writes JSON, or bytes as they are.
func writeAnswer(w http.ResponseWriter, status int, v any) error {
	switch v := v.(type) {
	case []byte:
		h := w.Header()
		h.Set("Content-Type", "application/octet-stream") // what it holds is not trusted
		h.Set("Content-Disposition", "attachment")
		h.Set("Content-Length", strconv.Itoa(len(v)))
		_, _ = w.Write(v) // a client that is gone needs no error
		return nil
	case json.RawMessage:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(v) // a client that is gone needs no error
		return nil
	case json.Marshaler: // an encoder would escape characters that it writes as they are
		data, err := v.MarshalJSON()
		if err != nil {
			return refusal.Fault("answer: %w", err)
		}
		return writeText(w, status, data)
	}
	return WriteJSON(w, status, v)
}

// Call sends the request and returns the answer. What is refused is the *refusal.Error with the
// code that the gateway gave.
func (o *Op[S, In, Out]) Call(ctx context.Context, c Client, in In) (out Out, err error) {
	r, err := o.Request(ctx, c, in)
	if err == nil {
		err = c.call(r, &out)
	}
	return out, err
}

// Stream is a request with its own answer, such as a stream. In is that of an [Op].
type Stream[In any] struct{ form }

// DefineStream returns the request of a row.
func DefineStream[In any](row Route) *Stream[In] {
	return &Stream[In]{newForm(row, reflect.TypeFor[In]())}
}

// Row returns the request with its handler.
func (s *Stream[In]) Row(handle func(w http.ResponseWriter, r *http.Request, in In) error) Route {
	row := s.row
	row.Handle = func(w http.ResponseWriter, r *http.Request) error {
		var in In
		if err := s.read(&Request{r, w}, reflect.ValueOf(&in).Elem()); err != nil {
			return err
		}
		return handle(w, r, in)
	}
	return row
}

// Request returns the request, for [Client.Send].
func (s *Stream[In]) Request(ctx context.Context, c Client, in In) (*http.Request, error) {
	return s.request(ctx, c, reflect.ValueOf(&in).Elem())
}

// BodyReader is a body with its own form, for the pointer of a field. The error is a refusal.
type BodyReader interface{ ReadBody(r *Request) error }

// BodyWriter is a body that is not written as JSON, or not as Go's encoder does, with its media type.
type BodyWriter interface {
	WriteBody() (data []byte, media string, err error)
}

// Parameterized is an In that checks the parameters of the query before they are read.
type Parameterized interface {
	CheckParameters(values map[string]string) error
}

// ParameterMap is a map with the texts of parameters by their names. Parameters yields the names that it can have,
// and what they do.
type ParameterMap interface {
	Parameters() iter.Seq2[string, string]
}

// form is a request as the fields of In make it.
type form struct {
	row    Route
	fields []field
	// query are the names of the parameters.
	query []string
}

// field is a field of In, at is where it is, path, query, header or body.
type field struct {
	index    []int
	at, name string
}

func newForm(row Route, in reflect.Type) form {
	f := form{row: row}
	f.add(in, nil)
	if strings.HasPrefix(row.Pattern, http.MethodGet+" ") && f.row.Query == nil {
		f.row.Query = []Parameter{} // others are refused
	}
	return f
}

// add adds the fields of a struct.
func (f *form) add(in reflect.Type, index []int) {
	for i := range in.NumField() {
		sf := in.Field(i)
		at := append(index[:len(index):len(index)], i)
		tagged := false
		for _, place := range []string{"path", "query", "header", "body"} {
			if name, is := sf.Tag.Lookup(place); is {
				tagged = true
				f.addField(field{at, place, name}, sf)
			}
		}
		if sf.Anonymous && !tagged {
			f.add(sf.Type, at)
		}
	}
}

// addField adds a field, and describes it in the row.
func (f *form) addField(fd field, sf reflect.StructField) {
	f.fields = append(f.fields, fd)
	p := Parameter{fd.name, sf.Tag.Get("doc")}
	switch {
	case fd.name == "*":
		for name, doc := range reflect.Zero(sf.Type).Interface().(ParameterMap).Parameters() {
			f.query, f.row.Query = append(f.query, name), append(f.row.Query, Parameter{name, doc})
		}
	case fd.at == "query":
		f.query, f.row.Query = append(f.query, fd.name), append(f.row.Query, p)
	case fd.name == namespaceHeader:
		f.row.Codes = append([]string{refusal.CodeBadNamespace}, f.row.Codes...)
	case fd.at == "header":
		f.row.Headers = append(f.row.Headers, p)
	case fd.at == "body" && f.row.Body == nil:
		f.row.Body = reflect.Zero(sf.Type).Interface()
	}
}

// read reads a request into an In.
func (f *form) read(r *Request, in reflect.Value) error {
	values := map[string]string{}
	if f.row.Query != nil {
		var err error
		if values, err = Parameters(r.Request, f.query...); err != nil {
			return err
		}
	}
	if check, is := in.Addr().Interface().(Parameterized); is {
		if err := check.CheckParameters(values); err != nil {
			return err
		}
	}
	for _, fd := range f.fields {
		v := in.FieldByIndex(fd.index)
		var err error
		switch fd.at {
		case "path":
			v.SetString(r.PathValue(fd.name))
		case "header":
			if all := r.Header.Values(fd.name); v.Kind() == reflect.Slice {
				v.Set(reflect.ValueOf(all))
			} else {
				v.SetString(r.Header.Get(fd.name))
			}
		case "query":
			if fd.name == "*" {
				readMap(v, values)
			} else if text, given := values[fd.name]; given {
				err = parse(v, fd.name, text)
			}
		case "body":
			err = f.readBody(r, v.Addr().Interface())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readMap reads parameters into a [ParameterMap].
func readMap(into reflect.Value, values map[string]string) {
	into.Set(reflect.MakeMap(into.Type()))
	for name := range into.Interface().(ParameterMap).Parameters() {
		if text, given := values[name]; given {
			into.SetMapIndex(reflect.ValueOf(name), reflect.ValueOf(text))
		}
	}
}

func (f *form) readBody(r *Request, into any) error {
	if own, is := into.(BodyReader); is {
		return own.ReadBody(r)
	}
	data, err := r.Body()
	if err != nil || f.row.OptionalBody && len(bytes.TrimSpace(data)) == 0 {
		return err
	}
	node, err := strict.ParseJSON(data)
	if err != nil {
		return err
	}
	return DecodeObject(node, into)
}

// request returns the request that an In asks for. It has its pattern and the parts of its path, as
// one that a server got.
func (f *form) request(ctx context.Context, c Client, in reflect.Value) (*http.Request, error) {
	if !validText(in) {
		// JSON would have other characters in their place, and nobody would see that.
		return nil, BadRequest("the request is not valid UTF-8")
	}
	method, path, _ := strings.Cut(f.row.Pattern, " ")
	query, header, parts := url.Values{}, http.Header{}, map[string]string{}
	var body []byte
	for _, fd := range f.fields {
		v := in.FieldByIndex(fd.index)
		switch {
		case fd.at == "path":
			parts[fd.name] = v.String()
			path = strings.Replace(path, "{"+fd.name+"}", url.PathEscape(v.String()), 1)
		case fd.at == "body":
			data, media, err := bodyOf(v)
			if err != nil {
				return nil, err
			}
			if body = data; media != "" {
				header.Set("Content-Type", media)
			}
		case fd.name == namespaceHeader && v.IsZero():
			if c.Namespace != "" {
				header.Set(fd.name, c.Namespace)
			}
		case v.IsZero():
		case fd.name == "*":
			for _, name := range v.MapKeys() {
				if text := v.MapIndex(name).String(); text != "" {
					query.Set(name.String(), text)
				}
			}
		case fd.at == "header" && v.Kind() == reflect.Slice:
			header[http.CanonicalHeaderKey(fd.name)] = v.Interface().([]string)
		case fd.at == "header":
			header.Set(fd.name, v.String())
		default:
			query.Set(fd.name, format(v))
		}
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, method, c.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header, r.Pattern = header, f.row.Pattern
	for name, value := range parts {
		r.SetPathValue(name, value)
	}
	return r, nil
}

func bodyOf(v reflect.Value) ([]byte, string, error) {
	if own, is := v.Addr().Interface().(BodyWriter); is {
		return own.WriteBody()
	}
	data, err := json.Marshal(v.Interface())
	return data, "application/json", err
}

// validText reports whether every text in a value is valid UTF-8.
func validText(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.String:
		return utf8.ValidString(v.String())
	case reflect.Pointer, reflect.Interface:
		return v.IsNil() || validText(v.Elem())
	case reflect.Struct:
		for _, field := range v.Fields() {
			if !validText(field) {
				return false
			}
		}
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return true // bytes
		}
		for i := range v.Len() {
			if !validText(v.Index(i)) {
				return false
			}
		}
	case reflect.Map:
		for key, value := range v.Seq2() {
			if !validText(key) || !validText(value) {
				return false
			}
		}
	}
	return true
}
