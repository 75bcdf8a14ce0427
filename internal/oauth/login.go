package oauth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"github.com/moorebus/moorebus/internal/httpserver"
)

// LoginOptions configure [Login]. URL, TokenFile, Transport and Show are required.
type LoginOptions struct {
	// URL is the server that wants to see a token.
	URL string
	// TokenFile is the file that the token is written to.
	TokenFile string
	// Document is the https URL of a client id metadata document, which describes the client
	// to authorization servers that read such documents. ClientID is a client that the
	// authorization server knows. Without either the client is registered there.
	Document, ClientID string
	// Scopes are asked for; empty: those that the server names.
	Scopes []string
	// Callback is the loopback address that the browser is sent back to. Default 127.0.0.1:0.
	Callback string
	// Show shows a person the address to open in a browser.
	Show      func(address string)
	Transport http.RoundTripper
}

// callbackPath is where the browser is sent back to.
const callbackPath = "/callback"

// probe is a request that a server with a login answers with 401.
const probe = `{"jsonrpc":"2.0","id":1,"method":"ping"}`

// Login lets a person log in to a server that asks for it, and writes the token to a file: with an
// authorization code, PKCE and the server as the token's resource. The authorization server is
// found with the server's metadata and its own. It waits for the person until ctx ends.
func Login(ctx context.Context, o LoginOptions) error {
	client := New(Config{}, o.Transport).client
	req, res, err := refusal(ctx, client, o.URL)
	if err != nil {
		return err
	}
	listener, err := listen(ctx, o.Callback)
	if err != nil {
		return err
	}
	back := &callback{results: make(chan callbackResult, 1), address: "http://" + listener.Addr().String() + callbackPath}
	served := httpserver.New(httpserver.Options{Handler: back})
	ended := make(chan error, 1)
	go func() { ended <- served.Serve(listener) }()
	defer func() {
		_ = served.Close() // the person has been answered, or is not waited for
		<-ended
	}()
	config := auth.AuthorizationCodeHandlerConfig{
		RedirectURL: back.address, Client: client, RequestRefreshToken: true,
		AuthorizationCodeFetcher: func(ctx context.Context, args *auth.AuthorizationArgs) (*auth.AuthorizationResult, error) {
			return back.wait(ctx, args.URL, o.Show)
		},
		NewTokenSource: func(_ context.Context, c *oauth2.Config, t *oauth2.Token) (oauth2.TokenSource, error) {
			if t.AccessToken == "" {
				return nil, errors.New("the authorization server gave no token")
			}
			kept := &stored{Token: *t, ClientID: c.ClientID, ClientSecret: c.ClientSecret, TokenURL: c.Endpoint.TokenURL}
			return oauth2.StaticTokenSource(t), writeToken(o.TokenFile, kept)
		},
	}
	if len(o.Scopes) > 0 {
		config.ScopeFilter = func([]string) []string { return o.Scopes }
	}
	switch {
	case o.Document != "":
		config.ClientIDMetadataDocumentConfig = &auth.ClientIDMetadataDocumentConfig{URL: o.Document}
	case o.ClientID != "":
		config.PreregisteredClient = &oauthex.ClientCredentials{ClientID: o.ClientID}
	}
	if o.ClientID == "" {
		config.DynamicClientRegistrationConfig = &auth.DynamicClientRegistrationConfig{Metadata: &oauthex.ClientRegistrationMetadata{
			ClientName: "Moorebus", RedirectURIs: []string{back.address}, TokenEndpointAuthMethod: "none",
			GrantTypes: []string{"authorization_code", "refresh_token"}, ResponseTypes: []string{"code"},
		}}
	}
	handler, err := auth.NewAuthorizationCodeHandler(&config)
	if err != nil {
		return err
	}
	err = handler.Authorize(ctx, req, res)
	var refused *oauth2.RetrieveError
	if errors.As(err, &refused) {
		return unauthorized(err)
	}
	return err
}

// refusal makes a request without a token, and returns it and the server's refusal.
func refusal(ctx context.Context, client *http.Client, address string) (*http.Request, *http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(probe))
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	res, err := client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	_ = res.Body.Close() // the status and the headers are enough
	if res.StatusCode != http.StatusUnauthorized {
		return nil, nil, fmt.Errorf("the server answered %s without a token, and not 401: it asks for no login", res.Status)
	}
	return req, &http.Response{StatusCode: res.StatusCode, Header: res.Header, Body: http.NoBody}, nil
}

// listen listens on a loopback address: whoever gets the code gets the token.
func listen(ctx context.Context, address string) (net.Listener, error) {
	if address == "" {
		address = "127.0.0.1:0"
	}
	at, err := netip.ParseAddrPort(address)
	if err != nil || !at.Addr().IsLoopback() {
		return nil, fmt.Errorf("callback: %q is no loopback address with a port, such as 127.0.0.1:8976", address)
	}
	return new(net.ListenConfig).Listen(ctx, "tcp", address)
}

// callback answers the browser that comes back from the authorization server.
type callback struct {
	address string
	// results gets the first result with the state that was sent.
	results chan callbackResult
	state   atomic.Pointer[string]
}

type callbackResult struct {
	auth.AuthorizationResult
	err error
}

// wait shows the address, and waits for the browser.
func (c *callback) wait(ctx context.Context, address string, show func(string)) (*auth.AuthorizationResult, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" {
		return nil, errors.New("the authorization server's page is no http or https URL")
	}
	state := u.Query().Get("state")
	c.state.Store(&state)
	show(address)
	select {
	case r := <-c.results:
		return &r.AuthorizationResult, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("nobody logged in: %w", context.Cause(ctx))
	}
}

// ServeHTTP takes the result of a request with the right state. Others change nothing.
func (c *callback) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if r.Method != http.MethodGet || r.URL.Path != callbackPath || c.state.Load() == nil || q.Get("state") != *c.state.Load() {
		http.Error(w, "This is not the login that Moorebus waits for.", http.StatusBadRequest)
		return
	}
	result := callbackResult{AuthorizationResult: auth.AuthorizationResult{Code: q.Get("code"), State: q.Get("state"), Iss: q.Get("iss")}}
	switch {
	case q.Get("error") != "":
		result.err = fmt.Errorf("the authorization server refused the login: %.200q %.200q", q.Get("error"), q.Get("error_description"))
	case result.Code == "":
		result.err = errors.New("the authorization server sent neither a code nor an error")
	}
	select {
	case c.results <- result:
	default: // the browser came twice
	}
	_, _ = fmt.Fprintln(w, "Return to the terminal. You may close this window.")
}
