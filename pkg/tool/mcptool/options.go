package mcptool

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/pkg/tool"
)

// The defaults of [Options].
const (
	defaultMaxMessage     = 16 << 20
	defaultConnectTimeout = 60 * time.Second
	defaultLinger         = 30 * time.Second
)

// Options say which server it is and how its tools are offered. Exactly one of
// Command and URL is set.
type Options struct {
	// Name is the server's, and the first part of its tools' names. Required.
	Name string

	// Command is a program and its arguments; no shell is involved. It is looked
	// up in the PATH of this process.
	Command []string
	// Env is added to the command's environment, each entry NAME=value.
	Env []string
	// Dir is the command's working folder. Default: this process's own.
	Dir string

	// URL is the endpoint of a server that speaks streamable HTTP, Headers are
	// sent with every request. Redirects are not followed: the headers may be
	// secrets.
	URL     string
	Headers map[string]string

	// Over is put over the definition of every tool: its set fields count, its
	// name, description and schema do not.
	Over tool.Definition
	// Tools are the names, as the server has them, of those that are offered;
	// empty: all.
	Tools []string

	// MaxMessage bounds one message of the server in bytes. Default 16 MiB.
	MaxMessage int
	// ConnectTimeout bounds how long a server may take to come up and to list its
	// tools; a package that has to be fetched first takes its time. Default 60 s.
	ConnectTimeout time.Duration
	// Linger is how long the tools of a server that went away stay announced.
	// Default 30 s.
	Linger time.Duration
}

// check returns o with its defaults, or everything that is wrong with it.
func (o Options) check() (Options, error) {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("MCP server %q: "+format, append([]any{o.Name}, args...)...))
	}
	if o.Name == "" || !strings.ContainsFunc(o.Name, named) {
		bad("its name has no letter and no digit, and is to begin its tools' names")
	}
	switch {
	case (len(o.Command) > 0) == (o.URL != ""):
		bad("give either a command or a url")
	case o.URL != "":
		if u, err := url.Parse(o.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			bad("url: is not an absolute http or https URL") // not repeated: it may hold a secret
		}
	case o.Command[0] == "":
		bad("command: is empty")
	}
	for _, text := range slices.Concat(o.Command, o.Env, []string{o.Dir}) {
		if strings.Contains(text, "\x00") {
			bad("command, env and dir must not contain NUL")
			break
		}
	}
	over := o.Over
	over.Name, over.Description, over.Schema = "x", "", nil
	if err := over.Validate(); err != nil {
		bad("%s", strings.TrimPrefix(err.Error(), `tool "x": `))
	}
	if o.MaxMessage <= 0 {
		o.MaxMessage = defaultMaxMessage
	}
	o.MaxMessage = min(o.MaxMessage, math.MaxInt32)
	if o.ConnectTimeout <= 0 {
		o.ConnectTimeout = defaultConnectTimeout
	}
	if o.Linger <= 0 {
		o.Linger = defaultLinger
	}
	o.Over = tool.Definition{
		Effect: over.Effect, Pool: over.Pool, Risk: over.Risk, Timeout: over.Timeout, Retries: over.Retries, Breaker: over.Breaker,
	}
	return o, errors.Join(errs...)
}

// inherited are the variables that a command gets of this process's environment.
var inherited = []string{"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER"}

// environment is a command's; the last entry of a name counts.
func (o *Options) environment() []string {
	var env []string
	for _, name := range inherited {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return append(env, o.Env...)
}
