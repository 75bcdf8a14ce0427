// Package oauth has the OAuth tokens for one server: those of a client with its own
// credentials, or one of a file, which is refreshed and which a login writes.
package oauth

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth/extauth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// Config says where tokens come from, see mcptool.OAuth.
type Config struct {
	ClientID, ClientSecret string
	TokenURL, Issuer       string
	Scopes                 []string
	TokenFile              string
}

// tokenTimeout bounds one request for a token.
const tokenTimeout = 15 * time.Second

// Authorizer has the tokens for one server. It is safe for concurrent use. A nil Authorizer
// hides nothing.
type Authorizer struct {
	o      Config
	client *http.Client

	// turn is full while a token is obtained.
	turn chan struct{}
	// found obtains tokens where the issuer was found, else nil. Who has the turn may use it.
	found oauth2.TokenSource

	mu    sync.Mutex
	token *oauth2.Token
}

// New returns the tokens of a configuration. Requests for tokens go over base.
func New(o Config, base http.RoundTripper) *Authorizer {
	return &Authorizer{o: o, turn: make(chan struct{}, 1), client: &http.Client{
		Transport: base, Timeout: tokenTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Error says that there is no token. No request was sent then.
type Error struct{ reason error }

// Error says why. It has no secret.
func (e *Error) Error() string { return "no OAuth token: " + e.reason.Error() }

func unauthorized(err error) error {
	var refused *oauth2.RetrieveError
	if errors.As(err, &refused) && refused.Response != nil { // its text has the entire answer
		err = fmt.Errorf("the authorization server answered %s %s", refused.Response.Status, refused.ErrorCode)
	}
	return &Error{err}
}

// Set adds a token to the request, if there is one, and obtains it within the request's
// context. Where the issuer has to be found there is none before the server has refused a request.
func (a *Authorizer) Set(req *http.Request) error {
	if !a.current().Valid() {
		err := a.exclusively(req.Context(), func(ctx context.Context) error {
			if a.current().Valid() {
				return nil // another request was faster
			}
			return a.renew(ctx)
		})
		if err != nil {
			return unauthorized(err)
		}
	}
	a.SetKnown(req)
	return nil
}

// SetKnown adds the last token to the request, if there is one. It does not wait.
func (a *Authorizer) SetKnown(req *http.Request) {
	if t := a.current(); t != nil {
		t.SetAuthHeader(req)
	}
}

// Refused takes a token away that the server refused in res, and reports whether the request
// may be made again with another one. It closes the body of a refusal. The error
// is an [Error].
func (a *Authorizer) Refused(req *http.Request, res *http.Response) (again bool, err error) {
	if res.StatusCode != http.StatusUnauthorized {
		return false, nil
	}
	_ = res.Body.Close() // the status and the headers are enough
	_, sent, _ := strings.Cut(req.Header.Get("Authorization"), " ")
	at, refusal := &http.Request{URL: req.URL}, &http.Response{Header: res.Header, Body: http.NoBody}
	err = a.exclusively(req.Context(), func(ctx context.Context) error {
		t := a.current()
		if t != nil && t.AccessToken != sent {
			return nil // another request was faster
		}
		if a.o.Issuer != "" {
			return a.find(ctx, at, refusal)
		}
		if t != nil {
			spent := *t
			spent.Expiry = time.Now().Add(-time.Hour)
			a.keep(&spent)
		}
		return a.renew(ctx)
	})
	if err != nil {
		return false, unauthorized(err)
	}
	return true, nil
}

// exclusively calls work when no other work is under way. The work continues if ctx ends: a
// refresh token that was used has to be replaced.
func (a *Authorizer) exclusively(ctx context.Context, work func(context.Context) error) error {
	select {
	case a.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-a.turn }()
		done <- work(context.WithoutCancel(ctx))
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// current returns the last token, or nil. Nobody changes it.
func (a *Authorizer) current() *oauth2.Token {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.token
}

func (a *Authorizer) keep(t *oauth2.Token) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.token = t
}

// find finds the token endpoint of the issuer, and gets a token there.
func (a *Authorizer) find(ctx context.Context, req *http.Request, res *http.Response) error {
	handler, err := extauth.NewClientCredentialsHandler(&extauth.ClientCredentialsHandlerConfig{
		HTTPClient: a.client,
		Credentials: &oauthex.ClientCredentials{
			ClientID: a.o.ClientID, Issuer: a.o.Issuer, ClientSecretAuth: &oauthex.ClientSecretAuth{ClientSecret: a.o.ClientSecret},
		},
	})
	if err != nil {
		return err
	}
	if err := handler.Authorize(ctx, req, res); err != nil {
		return err
	}
	if a.found, err = handler.TokenSource(ctx); err != nil {
		return err
	}
	t, err := a.found.Token()
	a.keep(t)
	return err
}

// renew replaces the token.
func (a *Authorizer) renew(ctx context.Context) error {
	ctx = context.WithValue(ctx, oauth2.HTTPClient, a.client)
	switch {
	case a.o.TokenFile != "":
		return a.refresh(ctx)
	case a.o.Issuer != "":
		if a.found == nil {
			return nil
		}
		t, err := a.found.Token()
		a.keep(t)
		return err
	}
	cfg := clientcredentials.Config{ClientID: a.o.ClientID, ClientSecret: a.o.ClientSecret, TokenURL: a.o.TokenURL, Scopes: a.o.Scopes}
	t, err := cfg.Token(ctx)
	a.keep(t)
	return err
}

// refresh takes the token of the file, and refreshes it if it is the one that is of no use any
// more. Another process that has the file may be faster: then its token is taken.
func (a *Authorizer) refresh(ctx context.Context) error {
	stored, err := readToken(a.o.TokenFile)
	if err != nil {
		return err
	}
	spent := a.current()
	if stored.Valid() && (spent == nil || spent.AccessToken != stored.AccessToken) {
		a.keep(&stored.Token)
		return nil
	}
	cfg := oauth2.Config{ClientID: a.o.ClientID, ClientSecret: a.o.ClientSecret, Endpoint: oauth2.Endpoint{TokenURL: a.o.TokenURL}}
	same := func(given, inFile string) bool { return given == "" || given == inFile }
	if same(a.o.ClientID, stored.ClientID) && same(a.o.TokenURL, stored.TokenURL) { // the file's secret is for the file's server
		cfg.ClientID, cfg.ClientSecret, cfg.Endpoint.TokenURL = stored.ClientID, cmp.Or(a.o.ClientSecret, stored.ClientSecret), stored.TokenURL
	}
	if stored.RefreshToken == "" || cfg.Endpoint.TokenURL == "" {
		return fmt.Errorf("the token in %s has expired or is refused, and there is no refresh_token in it or no token_url; log in again with `moorebus mcp login`", a.o.TokenFile)
	}
	fresh, err := cfg.TokenSource(ctx, &oauth2.Token{RefreshToken: stored.RefreshToken}).Token()
	if err != nil {
		if again, readErr := readToken(a.o.TokenFile); readErr == nil && again.Valid() && again.AccessToken != stored.AccessToken {
			a.keep(&again.Token)
			return nil
		}
		return err
	}
	fresh.RefreshToken = cmp.Or(fresh.RefreshToken, stored.RefreshToken)
	a.keep(fresh)
	stored.Token = *fresh
	return writeToken(a.o.TokenFile, stored)
}

// shortest is the length below which a token is too short to be found in texts.
const shortest = 6

// maxTokenFile bounds the file of a token.
const maxTokenFile = 64 << 10

// stored is what a token's file has: the token, and of a login also how it is refreshed.
type stored struct {
	oauth2.Token
	ClientID     string `json:"client_id,omitempty"`
	ClientSecret string `json:"client_secret,omitempty"`
	TokenURL     string `json:"token_url,omitempty"`
}

func readToken(name string) (*stored, error) {
	f, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w; log in with `moorebus mcp login`", err)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s can be read by others than its owner: chmod 600 it", name)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxTokenFile))
	if err != nil {
		return nil, err
	}
	var t stored
	if err := json.Unmarshal(data, &t); err != nil {
		return nil, fmt.Errorf("%s holds no token: want JSON with access_token, refresh_token and expiry", name)
	}
	return &t, nil
}

// writeToken replaces the file.
func writeToken(name string, t *stored) error {
	data, err := json.Marshal(t)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".token-*") // only its owner may read it
	if err != nil {
		return fmt.Errorf("the token cannot be stored: %w", err)
	}
	_, err = f.Write(append(data, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return fmt.Errorf("the token cannot be stored: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

// Hide removes the token from a text of the server.
func (a *Authorizer) Hide(text string) string {
	if a == nil {
		return text
	}
	t := a.current()
	if t == nil || len(t.AccessToken) < shortest {
		return text
	}
	return strings.ReplaceAll(text, t.AccessToken, "[REDACTED]")
}
