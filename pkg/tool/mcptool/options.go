// Package mcptool makes tools of the tools of MCP servers.
//
// [New] makes a tool.Source. It keeps one session with its server. The server is a
// command that speaks over its standard input and output, or a URL of streamable HTTP.
// If the server does not come up, dies or stops answering, the source reconnects with
// growing pauses. Meanwhile its tools stay announced for [Options.Linger], and calls wait
// for it as long as their timeout allows. A call in flight when its session ends fails
// with code unreachable (outcome_unknown if its class is once). It is not repeated here.
//
// # Tools
//
// The server's tool t is announced as `server.t`. Characters that a name cannot have
// become `_`. Its class is once and its risk high, which are the protocol's defaults, whatever
// the server says. With [Options.TrustHints] they come from the tool's annotations:
//
//	readOnlyHint                    pure if openWorldHint is false, else idempotent; risk low
//	idempotentHint                  idempotent, else once
//	destructiveHint false           risk medium, else high
//
// A server with resources has the tools list_resources and read_resource too, and one with
// prompts list_prompts and get_prompt. They are once with risk high as well, and idempotent with
// risk low with [Options.TrustHints]. The server's instructions are the tools' Guide.
//
// Annotations are claims of the server. A server that is trusted and lies can have a call made
// twice, or without an approval. [Options.Over] overrides class and risk in any case.
//
// A server may change what it says of a tool at any time. With [Options.Pinned] only the
// definitions that somebody has accepted are offered; each list is compared with them. The tools
// for resources and prompts are pinned by their names and the server's capability.
//
// # Results
//
// A result is the text of its parts, joined by newlines, or the structured content if
// there is no text. Binary parts are stored with the result if the actor allows it, and
// the text says where. A result with isError is a failure with code tool_failed.
//
// # Bounds
//
// A server can use only a bounded amount of memory and time. A message has at most
// [Options.MaxMessage] bytes; a longer one ends the session. A list of tools has at most
// 1,000 tools and 4 MiB, and is read at most once a second. Notifications are dropped,
// except that the list has changed. Requests that come faster than they are answered end
// the session. A call ends with its context. Servers may ask for sampling and roots, and
// are declined.
//
// # Handshake
//
// The source asks for version 2026-07-28 of the protocol first, with server/discover, and
// takes the older handshake if the server does not know that request, or a command does not
// answer it in time. Later sessions begin with what the server knew.
//
// # Questions
//
// A server may ask a human while it works on a call (elicitation, as a form). The call then
// ends with code input_required. An actor has a human answer and makes the call again, and
// the server gets the answer when it asks the same. In versions before 2026-07-28 a question
// does not say which call it is about: it is cancelled if several are in flight.
//
// # Processes
//
// A command runs in its own process group. The group is killed when the session
// ends. Only a process that has left the group, for its own session, survives. The
// command's environment has HOME, LANG, LOGNAME, PATH, SHELL, TERM, TMPDIR and USER, if
// they are set, and [Options.Env]. Other variables of this process may be keys and are
// not passed on. Standard error goes to the log in bounded lines.
package mcptool

import (
	"crypto/sha256"
	"encoding/hex"
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

// Options name a server and say how its tools are offered. Exactly one of Command and URL
// is set.
type Options struct {
	// Name is the server's name and the first part of its tools' names. Required.
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
	// OAuth gets tokens for the URL; nil: none are sent.
	OAuth *OAuth

	// Over overrides the definition of every tool with its set fields, except name,
	// description and schema.
	Over tool.Definition
	// TrustHints derives class and risk from the server's annotations, which may lower them.
	TrustHints bool
	// Pinned returns the digests ([Digest]) of the definitions that are accepted, by the server's
	// own names of the tools, and that of its instructions as [PinOfInstructions]. Other
	// definitions are not offered. It is called for each list of the server, and with an error
	// nothing is offered. Nil: every definition is accepted.
	Pinned func() (map[string]string, error)
	// Tools are the tools that are offered, by the server's own names or by patterns such as
	// `list_*`. Default: all.
	Tools []string

	// MaxMessage bounds one message of the server in bytes. Default 16 MiB.
	MaxMessage int
	// ConnectTimeout bounds how long a server may take to come up and list its tools.
	// It may have to be downloaded first. Default 60 s.
	ConnectTimeout time.Duration
	// Linger is how long the tools of a lost server stay announced. Default 30 s.
	Linger time.Duration
}

// OAuth says how the tokens are obtained that a server behind a URL wants to see: with the
// client's own credentials, or from a file that holds a token and is refreshed.
type OAuth struct {
	// ClientID and ClientSecret are the credentials. Without TokenFile both are required.
	ClientID, ClientSecret string
	// TokenURL is the authorization server's endpoint for tokens. Issuer is the authorization
	// server, if the endpoint is to be found with the metadata of the two servers. One of them
	// is required: no server may choose where the secret goes. TokenFile needs TokenURL, for
	// tokens that expire, unless the file names the endpoint.
	TokenURL, Issuer string
	// Scopes are asked for at TokenURL. With Issuer it is those that the server names.
	Scopes []string
	// TokenFile holds a token as JSON with the keys access_token, refresh_token and expiry
	// (RFC 3339), and after `moorebus mcp login` client_id, client_secret and token_url. It must
	// be readable by its owner only. A token that was refreshed replaces it.
	TokenFile string
}

func (o *OAuth) check() error {
	switch {
	case o.TokenFile != "" && o.Issuer != "":
		return errors.New("oauth: token_file needs token_url instead of issuer")
	case o.TokenFile != "":
		return nil
	case o.ClientID == "" || o.ClientSecret == "":
		return errors.New("oauth: give client_id and client_secret, or token_file")
	case (o.TokenURL == "") == (o.Issuer == ""):
		return errors.New("oauth: give either token_url or issuer, where the client's secret may be sent")
	case o.Issuer != "" && len(o.Scopes) > 0:
		return errors.New("oauth: with issuer the server names the scopes: give token_url instead, or leave scopes out")
	}
	return nil
}

// check returns o with defaults, and an error with everything that is wrong.
func (o Options) check() (Options, error) {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("MCP server %q: "+format, append([]any{o.Name}, args...)...))
	}
	if o.Name == "" || !strings.ContainsFunc(o.Name, named) {
		bad("its name has no letter and no digit; it must, since its tools' names begin with it")
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
	if o.OAuth != nil && o.URL == "" {
		bad("oauth: only a server with a url has it")
	} else if o.OAuth != nil {
		if err := o.OAuth.check(); err != nil {
			bad("%s", err)
		}
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

// inherited are the variables that a command inherits from this process.
var inherited = []string{"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER"}

// environment returns the command's environment. The last entry of a name counts.
func (o *Options) environment() []string {
	var env []string
	for _, name := range inherited {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return append(env, o.Env...)
}

// shortestSecret is the length below which a value is too short to be a secret.
const shortestSecret = 6

// shortestKey is the length from which a value is no word that a server may use by chance.
const shortestKey = 16

// concealer removes possible secrets from messages about a server: its URL except scheme
// and host, its headers' values, and the lines of its environment's values. keys are those that
// are too long to be words.
func concealer(o Options) (conceal *strings.Replacer, keys []string) {
	var secrets [][2]string
	hide := func(value, as string) {
		if len(value) >= shortestSecret {
			secrets = append(secrets, [2]string{value, as})
		}
	}
	if u, err := url.Parse(o.URL); err == nil && o.URL != "" {
		shown := u.Scheme + "://" + u.Host
		hide(o.URL, shown)
		hide(u.String(), shown)
		if u.User != nil { // as errors of net/http show it
			bare := *u
			bare.User = nil
			hide(strings.Replace(bare.String(), "://", "://"+url.User(u.User.Username()).String()+":***@", 1), shown)
			hide(u.User.String()+"@", "")
			password, _ := u.User.Password()
			hide(password, hidden)
			hide(u.User.Username(), hidden)
		}
		hide(u.RawQuery, hidden)
		for _, values := range u.Query() {
			for _, value := range values {
				hide(value, hidden)
				hide(url.QueryEscape(value), hidden)
			}
		}
	}
	for _, value := range o.Headers {
		hide(value, hidden)
		if _, token, found := strings.Cut(value, " "); found {
			hide(token, hidden)
		}
	}
	if o.OAuth != nil {
		hide(o.OAuth.ClientSecret, hidden)
	}
	for _, entry := range o.Env {
		_, value, _ := strings.Cut(entry, "=")
		for line := range strings.Lines(value) {
			hide(strings.TrimSpace(line), hidden)
		}
	}
	// The longest first: one may be the beginning of another.
	slices.SortStableFunc(secrets, func(a, b [2]string) int { return len(b[0]) - len(a[0]) })
	var pairs []string
	for _, secret := range secrets {
		pairs = append(pairs, secret[:]...)
		if secret[1] == hidden && len(secret[0]) >= shortestKey {
			keys = append(keys, secret[0])
		}
	}
	return strings.NewReplacer(pairs...), keys
}

// hidden replaces a secret.
const hidden = "[REDACTED]"

// maxName is the length of the longest tool name. markSize is the length of the digest at
// the end of a shortened name.
const (
	maxName  = 64
	markSize = 1 + 8
)

// toolName returns the name under which a tool is announced: `server.tool` with invalid
// characters replaced. A long name is shortened and ends in a digest.
func toolName(server, tool string) string {
	name := strings.Map(nameRune, server+"."+tool)
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256([]byte(server + "." + tool))
	mark := "_" + hex.EncodeToString(sum[:4])
	return name[:maxName-markSize] + mark
}

// Prefix returns the beginning of the names of a server's tools.
func Prefix(server string) string {
	whole := strings.Map(nameRune, server+".")
	return whole[:min(len(whole), maxName-markSize)]
}

func nameRune(r rune) rune {
	if named(r) || r == '_' || r == '-' || r == '.' {
		return r
	}
	return '_'
}

// named reports whether r is an ASCII letter or digit.
func named(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}
