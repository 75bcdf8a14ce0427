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
	// Definition is the same for callers that may stand in for each other, such as
	// two with one address and one default model, and differs for others. It holds
	// no key.
	Definition() string
}

// Definition says what a caller is. For one that is not [Defined] it is its type, for
// a function its name, and the program that it is part of: two copies of a program
// have the same callers, and so have two versions of it.
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

// program identifies the program by the path of its main package. One that was made
// of single files has none, so its executable stands for it.
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
