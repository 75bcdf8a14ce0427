package llm

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"sync"
)

// Defined is a [Caller] that says what it is.
type Defined interface {
	Caller
	// Definition is equal for callers that can replace each other, such as two with
	// the same address and default model, and differs for others. It holds no key.
	Definition() string
}

// Definition identifies a caller. If it is not [Defined] that is its type, or a
// function's name, and its program: copies and versions of a program have the same
// callers.
func Definition(c Caller) string {
	if d, ok := c.(Defined); ok {
		return d.Definition()
	}
	name := ""
	if v := reflect.ValueOf(c); v.Kind() == reflect.Func {
		name = runtime.FuncForPC(v.Pointer()).Name()
	}
	return fmt.Sprintf("%T %s of %s", c, name, program())
}

// program identifies the program by the path of its main package. A program of single
// files has none; the hash of its executable identifies it.
var program = sync.OnceValue(func() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Path != "" && info.Path != "command-line-arguments" {
		return info.Path
	}
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	file, err := os.Open(path)
	if err != nil {
		return path
	}
	defer func() { _ = file.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return path
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
})
