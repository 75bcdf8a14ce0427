package mcptool

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/pkg/tool"
)

// guarded is an MCP server and its authorization server.
type guarded struct {
	mcp, auth *httptest.Server

	mu sync.Mutex
	// good is the only token that the MCP server takes.
	good   string
	issued int
	asked  []string // the forms of requests for tokens
	broken bool     // the authorization server refuses everything
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{}
	protocol := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return g.serve() }, &mcp.StreamableHTTPOptions{Stateless: true})
	tokens := http.NewServeMux()
	g.auth = httptest.NewServer(tokens)
	t.Cleanup(g.auth.Close)
	tokens.HandleFunc("/token", g.token)
	tokens.HandleFunc("/.well-known/oauth-authorization-server", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"issuer": %q, "token_endpoint": %q, "authorization_endpoint": %q, "response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"]}`, g.auth.URL, g.auth.URL+"/token", g.auth.URL+"/authorize")
	})
	site := http.NewServeMux()
	g.mcp = httptest.NewServer(site)
	t.Cleanup(g.mcp.Close)
	site.HandleFunc("/.well-known/oauth-protected-resource/mcp", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"resource": %q, "authorization_servers": [%q]}`, g.mcp.URL+"/mcp", g.auth.URL)
	})
	site.HandleFunc("/mcp", func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		good := r.Header.Get("Authorization") == "Bearer "+g.good
		g.mu.Unlock()
		if !good {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer resource_metadata=%q`, g.mcp.URL+"/.well-known/oauth-protected-resource/mcp"))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		protocol.ServeHTTP(w, r)
	})
	return g
}

// serve returns the MCP server, which shows the token that it takes where it can.
func (g *guarded) serve() *mcp.Server {
	g.mu.Lock()
	good := g.good
	g.mu.Unlock()
	s := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ServerOptions{Instructions: "Your token is " + good + "."})
	object := map[string]any{"type": "object"}
	s.AddTool(&mcp.Tool{Name: "echo", InputSchema: object}, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return words(string(r.Params.Arguments)), nil
	})
	s.AddTool(&mcp.Tool{Name: "leak", InputSchema: object}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"x": &mcp.ElicitParams{
			Mode: "form", Message: "Is " + good + " yours?", RequestedSchema: object,
		}}}, nil
	})
	return s
}

// token issues tokens to the client c with the secret s3cret-word, and for refresh tokens that
// it issued last.
func (g *guarded) token(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = r.ParseForm()
	g.asked = append(g.asked, r.Form.Get("grant_type"))
	id, secret, basic := r.BasicAuth()
	if !basic {
		id, secret = r.Form.Get("client_id"), r.Form.Get("client_secret")
	}
	w.Header().Set("Content-Type", "application/json")
	refresh := r.Form.Get("grant_type") == "refresh_token"
	if g.broken || id != "c" || secret != "s3cret-word" || refresh && r.Form.Get("refresh_token") != fmt.Sprint("refresh-", g.issued) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = fmt.Fprint(w, `{"error": "invalid_client", "error_description": "s3cret-word is wrong"}`)
		return
	}
	g.issued++
	g.good = fmt.Sprint("access-token-", g.issued)
	_, _ = fmt.Fprintf(w, `{"access_token": %q, "refresh_token": "refresh-%d", "token_type": "Bearer", "expires_in": 3600}`, g.good, g.issued)
}

// revoke makes the server refuse the token that is in use.
func (g *guarded) revoke() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.good = "none"
}

func (g *guarded) grants() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(g.asked, " ")
}

func TestClientCredentials(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*guarded, *OAuth){
		"token_url": func(g *guarded, o *OAuth) { o.TokenURL = g.auth.URL + "/token" },
		"issuer":    func(g *guarded, o *OAuth) { o.Issuer = g.auth.URL },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGuarded(t)
			o := &OAuth{ClientID: "c", ClientSecret: "s3cret-word"}
			set(g, o)
			r := start(t, Options{Name: "srv", URL: g.mcp.URL + "/mcp", OAuth: o, Over: tool.Definition{Timeout: within}})
			require.Equal(t, "{}", r.says(t, "echo"))
			require.False(t, r.server.legacy)
			require.NotContains(t, g.grants(), "refresh")
			made, _ := r.Lookup("srv.echo")
			require.Contains(t, made.Definition().Guide, "Your token is [REDACTED].")
			before := g.grants()
			require.Equal(t, "{}", r.says(t, "echo"))
			require.Equal(t, before, g.grants(), "a token is used until it is refused or expires")
			g.revoke()
			require.Equal(t, "{}", r.says(t, "echo"))
			require.Equal(t, before+" client_credentials", g.grants())
			out := r.call(t, "echo", fmt.Sprintf(`{"x": %q}`, g.good))
			require.Nil(t, out.Failure)
			require.Equal(t, `{"x":"[REDACTED]"}`, out.Result, "a server cannot show the token")
			var question string
			ctx := callctx.WithQuestion(t.Context(), func(text string, _ func(string) error) error {
				question = text
				return tool.Failf(codes.InputRequired, "%s", text)
			})
			r.Execute(ctx, tool.Call{Run: "run", ID: "c", Name: "srv.leak", Arguments: "{}"})
			require.Equal(t, "The MCP server srv asks: Is [REDACTED] yours? (any answer confirms)", question)
			require.NotContains(t, r.log.String(), "s3cret-word")
			require.NotContains(t, r.log.String(), "access-token")
		})
	}
}

// The server that was reached does not choose who gets the secret.
func TestIssuerIsNotTheServersChoice(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	r := start(t, Options{Name: "srv", URL: g.mcp.URL + "/mcp", OAuth: &OAuth{ClientID: "c", ClientSecret: "s3cret-word", Issuer: "https://id.example"}})
	require.Empty(t, r.Definitions())
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "no OAuth token") }, within, 10*time.Millisecond)
	require.Empty(t, g.grants())
}

func TestStoredToken(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	g.good, g.issued = "access-token-7", 7
	file := filepath.Join(t.TempDir(), "token.json")
	store := func(access string, expiry time.Time) {
		data, err := json.Marshal(map[string]any{"access_token": access, "refresh_token": "refresh-7", "expiry": expiry})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, data, 0o600))
	}
	store("access-token-7", time.Now().Add(time.Hour))
	o := Options{
		Name: "srv", URL: g.mcp.URL + "/mcp", Over: tool.Definition{Timeout: within},
		OAuth: &OAuth{ClientID: "c", ClientSecret: "s3cret-word", TokenURL: g.auth.URL + "/token", TokenFile: file},
	}
	r := start(t, o)
	require.Equal(t, "{}", r.says(t, "echo"))
	require.Empty(t, g.grants())
	g.revoke()
	require.Equal(t, "{}", r.says(t, "echo"))
	require.Equal(t, "refresh_token", g.grants())
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	stored, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(stored), "access-token-8")
	require.Contains(t, string(stored), "refresh-8")

	t.Run("another process refreshes it", func(t *testing.T) {
		g.mu.Lock()
		g.good = "access-token-9"
		g.mu.Unlock()
		store("access-token-9", time.Now().Add(time.Hour))
		require.Equal(t, "{}", r.says(t, "echo"))
		require.Equal(t, "refresh_token", g.grants())
	})
	t.Run("no refresh", func(t *testing.T) {
		g.mu.Lock()
		g.broken = true
		g.mu.Unlock()
		store("spent", time.Now().Add(-time.Hour))
		short := o
		short.Over.Timeout = time.Second
		failing := start(t, short)
		require.Empty(t, failing.Definitions())
		require.Eventually(t, func() bool { return strings.Contains(failing.log.String(), "401 Unauthorized invalid_client") }, within, 10*time.Millisecond)
		require.NotContains(t, failing.log.String(), "s3cret-word")
	})
}

func TestOAuthThatCannotBe(t *testing.T) {
	t.Parallel()
	for says, o := range map[string]Options{
		"only a server with a url":           {Command: []string{"x"}, OAuth: &OAuth{ClientID: "c", ClientSecret: "s", TokenURL: "http://x"}},
		"give client_id and client_secret":   {URL: "http://x", OAuth: &OAuth{ClientID: "c", TokenURL: "http://x"}},
		"either token_url or issuer":         {URL: "http://x", OAuth: &OAuth{ClientID: "c", ClientSecret: "s"}},
		"with issuer the server names":       {URL: "http://x", OAuth: &OAuth{ClientID: "c", ClientSecret: "s", Issuer: "http://x", Scopes: []string{"read"}}},
		"token_file needs token_url instead": {URL: "http://x", OAuth: &OAuth{TokenFile: "f", Issuer: "http://x"}},
	} {
		o.Name = "srv"
		_, err := New(o)
		require.ErrorContains(t, err, says)
	}
}
