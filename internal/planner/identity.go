package planner

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/moorebus/moorebus/pkg/llm"
)

// Identity identifies a model caller among processes, see [llm.Description]. A caller
// without its own identity is identified by its type, or its function's name, and
// the program: copies and versions of a program have the same callers.
func Identity(c llm.Caller) string {
	if own := llm.Describe(c).Identity; own != "" {
		return own
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
