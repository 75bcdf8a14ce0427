package route

import (
	"reflect"
	"strconv"
	"time"
)

// parse reads a parameter of the query into a field of an In.
func parse(v reflect.Value, name, text string) error {
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		return parse(v.Elem(), name, text)
	}
	switch at := v.Addr().Interface().(type) {
	case *time.Time:
		var err error
		if *at, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return BadParameter("%s: %.100q is not a time such as 2026-01-02T15:04:05Z", name, text)
		}
		return nil
	}
	switch v.Kind() {
	case reflect.Bool:
		if text != "true" && text != "false" {
			return BadParameter("%s: %.100q is neither true nor false", name, text)
		}
		v.SetBool(text == "true")
	case reflect.Int, reflect.Uint64:
		n, err := Number(map[string]string{name: text}, name, 0)
		if err != nil {
			return err
		}
		v.Set(reflect.ValueOf(n).Convert(v.Type()))
	case reflect.Float64:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return BadParameter("%s: %.100q is not a number of US dollars", name, text)
		}
		v.SetFloat(n)
	default:
		v.SetString(text)
	}
	return nil
}

// format is the inverse of parse.
func format(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if at, is := v.Interface().(time.Time); is {
		return at.UTC().Format(time.RFC3339Nano)
	}
	switch v.Kind() {
	case reflect.Bool:
		return strconv.FormatBool(v.Bool())
	case reflect.Int:
		return strconv.FormatInt(v.Int(), 10)
	case reflect.Uint64:
		return strconv.FormatUint(v.Uint(), 10)
	case reflect.Float64:
		return strconv.FormatFloat(v.Float(), 'g', -1, 64)
	}
	return v.String()
}
