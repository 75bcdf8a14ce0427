package mcptool

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/oauth"
	"github.com/moorebus/moorebus/pkg/tool"
)

// issuer is an authorization server for people, and an MCP server that takes its tokens.
type issuer struct {
	mcp, auth *httptest.Server

	mu        sync.Mutex
	documents bool // it reads client id metadata documents
	closed    bool // it registers nobody
	client    string
	challenge string
	good      string
	refreshed int
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	s := &issuer{}
	pages := http.NewServeMux()
	s.auth = httptest.NewServer(pages)
	t.Cleanup(s.auth.Close)
	pages.HandleFunc("/.well-known/oauth-authorization-server", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		m := map[string]any{
			"issuer": s.auth.URL, "authorization_endpoint": s.auth.URL + "/authorize", "token_endpoint": s.auth.URL + "/token",
			"response_types_supported": []string{"code"}, "code_challenge_methods_supported": []string{"S256"},
			"client_id_metadata_document_supported": s.documents,
		}
		if !s.closed {
			m["registration_endpoint"] = s.auth.URL + "/register"
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(m)
	})
	pages.HandleFunc("POST /register", func(w http.ResponseWriter, r *http.Request) {
		var m map[string]any
		_ = json.NewDecoder(r.Body).Decode(&m)
		m["client_id"] = "registered"
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(m)
	})
	pages.HandleFunc("GET /authorize", s.authorize)
	pages.HandleFunc("POST /token", s.token)
	site := http.NewServeMux()
	s.mcp = httptest.NewServer(site)
	t.Cleanup(s.mcp.Close)
	site.HandleFunc("/.well-known/oauth-protected-resource/mcp", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"resource": %q, "authorization_servers": [%q], "scopes_supported": ["read"]}`, s.mcp.URL+"/mcp", s.auth.URL)
	})
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{Name: "echo", InputSchema: map[string]any{"type": "object"}}, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return words(string(r.Params.Arguments)), nil
	})
	protocol := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: true})
	site.HandleFunc("/mcp", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		good := s.good != "" && r.Header.Get("Authorization") == "Bearer "+s.good
		s.mu.Unlock()
		if !good {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer resource_metadata=%q`, s.mcp.URL+"/.well-known/oauth-protected-resource/mcp"))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		protocol.ServeHTTP(w, r)
	})
	return s
}

// authorize logs everybody in who asks for the MCP server with PKCE.
func (s *issuer) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.client, s.challenge = q.Get("client_id"), q.Get("code_challenge")
	back, err := url.Parse(q.Get("redirect_uri"))
	if err != nil || q.Get("resource") != s.mcp.URL+"/mcp" || q.Get("code_challenge_method") != "S256" || s.challenge == "" || q.Get("scope") != "read" {
		http.Error(w, r.URL.RawQuery, http.StatusBadRequest)
		return
	}
	answer := url.Values{"state": {q.Get("state")}, "code": {"the-code"}}
	if s.client == "refused" {
		answer = url.Values{"state": {q.Get("state")}, "error": {"access_denied"}}
	}
	back.RawQuery = answer.Encode()
	http.Redirect(w, r, back.String(), http.StatusFound)
}

func (s *issuer) token(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = r.ParseForm()
	proof := sha256.Sum256([]byte(r.Form.Get("code_verifier")))
	code := r.Form.Get("grant_type") == "authorization_code" && r.Form.Get("code") == "the-code" && r.Form.Get("resource") == s.mcp.URL+"/mcp" &&
		base64.RawURLEncoding.EncodeToString(proof[:]) == s.challenge
	refresh := r.Form.Get("grant_type") == "refresh_token" && r.Form.Get("refresh_token") == "refresh-word"
	w.Header().Set("Content-Type", "application/json")
	if r.Form.Get("client_id") != s.client || !code && !refresh {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprint(w, `{"error": "invalid_grant"}`)
		return
	}
	if refresh {
		s.refreshed++
	}
	s.good = fmt.Sprint("access-token-", s.refreshed)
	_, _ = fmt.Fprintf(w, `{"access_token": %q, "refresh_token": "refresh-word", "token_type": "Bearer", "expires_in": 3600}`, s.good)
}

// browse is a person's browser.
func browse(t *testing.T, address string) {
	res, err := http.Get(address)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("%s %s %v", res.Status, text, err)
	}
}

// A person logs in, and the tools of the server can be called with the file alone.
func TestLogin(t *testing.T) {
	t.Parallel()
	for client, set := range map[string]func(*issuer, *oauth.LoginOptions){
		"registered": func(*issuer, *oauth.LoginOptions) {},
		"known":      func(s *issuer, o *oauth.LoginOptions) { s.closed, o.ClientID = true, "known" },
		"https://client.example/moorebus.json": func(s *issuer, o *oauth.LoginOptions) {
			s.documents, o.Document = true, "https://client.example/moorebus.json"
		},
	} {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			s := newIssuer(t)
			file := filepath.Join(t.TempDir(), "token.json")
			o := oauth.LoginOptions{URL: s.mcp.URL + "/mcp", TokenFile: file, Transport: http.DefaultTransport}
			set(s, &o)
			o.Show = func(address string) {
				page, err := url.Parse(address)
				require.NoError(t, err)
				// Others cannot bring a code, or end the login.
				for _, query := range []string{"code=mine", "code=mine&state=guess", "error=no&state="} {
					res, err := http.Get(page.Query().Get("redirect_uri") + "?" + query)
					require.NoError(t, err)
					require.NoError(t, res.Body.Close())
					require.Equal(t, http.StatusBadRequest, res.StatusCode)
				}
				go browse(t, address)
			}
			require.NoError(t, oauth.Login(t.Context(), o))
			s.mu.Lock()
			require.Equal(t, client, s.client)
			s.mu.Unlock()
			info, err := os.Stat(file)
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
			r := start(t, Options{Name: "srv", URL: o.URL, OAuth: &OAuth{TokenFile: file}, Over: tool.Definition{Timeout: within}})
			require.Equal(t, "{}", r.says(t, "echo"))
			s.mu.Lock()
			s.good = "none"
			s.mu.Unlock()
			require.Equal(t, "{}", r.says(t, "echo"), "the file says where the token is refreshed")
			s.mu.Lock()
			defer s.mu.Unlock()
			require.Positive(t, s.refreshed)
		})
	}
}

func TestLoginThatFails(t *testing.T) {
	t.Parallel()
	s := newIssuer(t)
	s.closed = true
	o := oauth.LoginOptions{URL: s.mcp.URL + "/mcp", TokenFile: filepath.Join(t.TempDir(), "token.json"), Transport: http.DefaultTransport}
	o.Show = func(address string) { go browse(t, address) }
	require.ErrorContains(t, oauth.Login(t.Context(), o), "registration")
	o.ClientID = "refused"
	require.ErrorContains(t, oauth.Login(t.Context(), o), "access_denied")
	o.ClientID, o.Callback = "known", "0.0.0.0:0"
	require.ErrorContains(t, oauth.Login(t.Context(), o), "loopback")
	o.Callback = ""
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	o.Show = func(string) { stop() } // who was shown the page does not come
	require.ErrorContains(t, oauth.Login(ctx, o), "nobody logged in")
	open := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(open.Close)
	o.URL = open.URL
	require.ErrorContains(t, oauth.Login(t.Context(), o), "asks for no login")
	require.NoFileExists(t, o.TokenFile)
}
