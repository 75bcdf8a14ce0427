package doctor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
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

// provider asks a provider for its list of models, and looks for the model that agents get
// which name none. The findings hold neither the key nor a password of the address.
func (d *Checks) provider(ctx context.Context, v providers.Provider, key, base string) []natsbus.Finding {
	address, err := url.Parse(strings.TrimSpace(cmp.Or(base, v.BaseURL)))
	if err != nil || address.RawQuery != "" || address.Fragment != "" || (address.Scheme != "http" && address.Scheme != "https") || address.Host == "" {
		return []natsbus.Finding{finding(natsbus.Bad, "set it to an address such as "+v.ExampleURL, "%s is not an http or https address without a query", v.URLVar)}
	}
	v.Trim(address)
	sign := func(h http.Header) { v.Sign(h, key) }
	at := address.JoinPath(v.ModelsPath)
	name := at.Redacted()
	got, err := d.ask(ctx, at, sign)
	one := func(level natsbus.Level, mend, format string, args ...any) []natsbus.Finding {
		return []natsbus.Finding{finding(level, mend, format, args...)}
	}
	switch {
	case err != nil:
		return one(natsbus.Bad, "start the server, check "+v.URLVar+", or the network and its proxy", "GET %s: %v", name, err)
	case got.status == http.StatusUnauthorized || got.status == http.StatusForbidden:
		if key == "" {
			return one(natsbus.Bad, "set "+v.KeyVar, "GET %s: status %d, a key is required and none is set", name, got.status)
		}
		return one(natsbus.Bad, "set "+v.KeyVar+" to a valid key", "GET %s: status %d, the key is refused", name, got.status)
	case got.status == http.StatusOK && isList(got.body):
		found := one(natsbus.Good, "", "%s answers, %s", name, keyWords(v, key))
		return append(found, d.model(ctx, v, address, got.body, sign)...)
	case got.status == http.StatusOK || got.status == http.StatusNotFound || got.status == http.StatusMethodNotAllowed:
		if below := address.JoinPath("v1"); v.Name != providers.Anthropic && !strings.HasSuffix(address.Path, "/v1") {
			if got, err := d.ask(ctx, below.JoinPath(v.ModelsPath), sign); err == nil && got.status == http.StatusOK && isList(got.body) {
				return one(natsbus.Bad, "set "+v.URLVar+"="+below.Redacted(), "GET %s: the server does not list models there, but below /v1: %s lacks it", name, v.URLVar)
			}
		}
		return one(natsbus.Warning, "check that "+v.URLVar+" is the address that the provider documents, "+v.URLHint, "GET %s: status %d, the server does not list models", name, got.status)
	}
	return one(natsbus.Warning, "see the provider's status page, or try again", "GET %s: status %d", name, got.status)
}

// isList reports whether a body is a list of models. LM Studio answers 200 to any path.
func isList(body []byte) bool {
	var list struct {
		Data *[]json.RawMessage `json:"data"`
	}
	return json.Unmarshal(body, &list) == nil && list.Data != nil
}

func keyWords(v providers.Provider, key string) string {
	if key == "" {
		return "without a key"
	}
	return "and " + v.KeyVar + " is accepted"
}

// answer is what a provider answered.
type answer struct {
	status int
	body   []byte
}

// maxList bounds how much of a list of models is read, in bytes.
const maxList = 4 << 20

func (d *Checks) ask(ctx context.Context, address *url.URL, sign func(http.Header)) (answer, error) {
	return d.send(ctx, http.MethodGet, address, nil, sign)
}

func (d *Checks) send(ctx context.Context, method string, address *url.URL, body []byte, sign func(http.Header)) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, providerTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, address.String(), bytes.NewReader(body))
	if err != nil {
		return answer{}, withoutURL(err)
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
		return answer{}, withoutURL(err)
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxList)) // the status is known; a cut list is not read
	return answer{resp.StatusCode, text}, resp.Body.Close()
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
