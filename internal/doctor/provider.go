package doctor

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/providers"
)

// providerTimeout is how long a model provider may take to list its models.
const providerTimeout = 3 * time.Second

// provider asks a provider for its list of models. The finding holds neither the key nor a
// password of the address.
func (d *Checks) provider(ctx context.Context, v providers.Provider, key, base string) natsbus.Finding {
	address, err := url.Parse(strings.TrimRight(cmp.Or(base, v.BaseURL), "/"))
	if err != nil || (address.Scheme != "http" && address.Scheme != "https") || address.Host == "" {
		return finding(natsbus.Bad, "set it to an address such as "+v.ExampleURL, "%s is not an http or https address", v.URLVar)
	}
	address = address.JoinPath(v.ModelsPath)
	name := address.Redacted()
	status, err := d.ask(ctx, address, func(h http.Header) { v.Sign(h, key) })
	switch {
	case err != nil:
		return finding(natsbus.Bad, "start the server, check "+v.URLVar+", or the network and its proxy", "GET %s: %v", name, err)
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		if key == "" {
			return finding(natsbus.Bad, "set "+v.KeyVar, "GET %s: status %d, a key is required and none is set", name, status)
		}
		return finding(natsbus.Bad, "set "+v.KeyVar+" to a valid key", "GET %s: status %d, the key is refused", name, status)
	case status == http.StatusOK:
		return finding(natsbus.Good, "", "%s answers, %s", name, keyWords(v, key))
	case status == http.StatusNotFound || status == http.StatusMethodNotAllowed:
		return finding(natsbus.Warning, "check that "+v.URLVar+" is the address that the provider documents, "+v.URLHint, "GET %s: status %d, the server does not list models", name, status)
	}
	return finding(natsbus.Warning, "see the provider's status page, or try again", "GET %s: status %d", name, status)
}

func keyWords(v providers.Provider, key string) string {
	if key == "" {
		return "without a key"
	}
	return "and " + v.KeyVar + " is accepted"
}

func (d *Checks) ask(ctx context.Context, address *url.URL, sign func(http.Header)) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, providerTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return 0, withoutURL(err)
	}
	req.Header.Set("User-Agent", "moorebus")
	sign(req.Header)
	client := d.Client
	if client == nil {
		transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
		// The key is for this address only, so redirects are not followed.
		client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, withoutURL(err)
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<16)) // only the status matters
	return resp.StatusCode, resp.Body.Close()
}

// withoutURL returns the reason alone: the finding names the URL itself.
func withoutURL(err error) error {
	var where *url.Error
	if errors.As(err, &where) {
		err = where.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("no answer within " + providerTimeout.String())
	}
	return err
}
