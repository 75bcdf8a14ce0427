package webhooks_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/feature/webhooks"
	"github.com/moorebus/moorebus/internal/nodetest"
)

// posted posts a body and returns what the receiver got.
func posted(t *testing.T, secrets []string, body string) (http.Header, string) {
	t.Helper()
	var header http.Header
	var got string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		header, got = r.Header, string(data)
	}))
	defer server.Close()
	o := webhooks.NewSender(loopback).Post(t.Context(), webhooks.Message{URL: server.URL, ID: "evt_1", Secrets: secrets, Body: []byte(body)})
	require.True(t, o.Delivered(), "%+v", o)
	return header, got
}

// The library of Standard Webhooks for JavaScript verifies what is posted, with each of two secrets,
// and nothing that was changed.
func TestStandardWebhooksVerifies(t *testing.T) {
	t.Parallel()
	old, present, other := webhooks.NewSecret(), webhooks.NewSecret(), webhooks.NewSecret()
	header, body := posted(t, []string{present, old}, `{"type":"run.ended","data":{"answer":"Grüße <3"}}`)
	cases := map[string]any{
		"present": map[string]any{"secret": present, "body": body}, "old": map[string]any{"secret": old, "body": body},
		"other": map[string]any{"secret": other, "body": body}, "changed": map[string]any{"secret": present, "body": body + " "},
	}
	headers := map[string]string{}
	for _, name := range []string{webhooks.HeaderID, webhooks.HeaderTimestamp, webhooks.HeaderSignature} {
		headers[name] = header.Get(name)
	}
	input, err := json.Marshal(map[string]any{"headers": headers, "cases": cases})
	require.NoError(t, err)
	out, err := nodetest.Command(t, `
import { Webhook } from "standardwebhooks";
const { headers, cases } = JSON.parse(process.argv[2]);
const results = {};
for (const [name, { secret, body }] of Object.entries(cases)) {
  try { new Webhook(secret).verify(body, headers); results[name] = true; } catch (e) { results[name] = false; }
}
console.log(JSON.stringify(results));
`, string(input)).Output()
	require.NoError(t, err)
	require.JSONEq(t, `{"present": true, "old": true, "other": false, "changed": false}`, string(out))
}

// The headers are an id, whole seconds, and a signature with its version.
func TestHeaders(t *testing.T) {
	t.Parallel()
	header, _ := posted(t, []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}, "{}")
	require.Equal(t, "evt_1", header.Get(webhooks.HeaderID))
	require.Regexp(t, `^\d{10}$`, header.Get(webhooks.HeaderTimestamp))
	require.Regexp(t, `^v1,[A-Za-z0-9+/]{43}=$`, header.Get(webhooks.HeaderSignature))
	require.Equal(t, "application/json", header.Get("Content-Type"))
}

// Only public addresses are reached, in whatever form an address is written.
func TestAddresses(t *testing.T) {
	t.Parallel()
	s := webhooks.Networks{netip.MustParsePrefix("10.1.0.0/16")}
	for _, public := range []string{"8.8.8.8", "2606:4700::1111", "10.1.2.3", "::ffff:10.1.2.3"} {
		require.True(t, s.MayReach(netip.MustParseAddr(public)), public)
	}
	for _, inner := range []string{
		"127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "10.2.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "::ffff:169.254.169.254",
		"100.64.0.1", "100.100.100.200", "192.0.0.192", "198.18.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1", "fe80::1", "fe80::1%eth0", "fd00:ec2::254", "ff02::1",
		"64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::169.254.169.254", "fec0::1", "2001:db8::1", "2001::1",
	} {
		require.False(t, s.MayReach(netip.MustParseAddr(inner)), inner)
	}
}

// A URL is refused whose host nobody can reach, however it is written, and no other.
func TestURLs(t *testing.T) {
	t.Parallel()
	parse := func(text string) *url.URL {
		u, err := url.Parse(text)
		require.NoError(t, err, text)
		return u
	}
	networks := webhooks.Networks{netip.MustParsePrefix("10.1.0.0/16")}
	for _, fine := range []string{
		"https://8.8.8.8/x", "https://10.1.2.3", "https://[::ffff:10.1.2.3]:8443", "https://hooks.example", "https://hooks.example.:65535/", "https://HOOKS.Example",
		"https://hooks", "https://a_b.example", "https://grüße.example", "https://0xabcg.example", "https://localhost.example", "https://1.2.3.4.example",
	} {
		require.NoError(t, networks.Check(parse(fine)), fine)
	}
	for text, why := range map[string]string{
		"https://169.254.169.254/latest": "169.254.169.254 is not public", "https://127.0.0.1": "not public", "https://10.2.0.1": "not public",
		"https://[::1]": "not public", "https://[fe80::1%25eth0]": "not public", "https://[::ffff:169.254.169.254]": "not public", "https://[::ffff:a9fe:a9fe]": "not public",
		"https://[64:ff9b::a9fe:a9fe]": "not public", "https://localhost": "localhost is not public", "https://LOCALHOST.": "not public", "https://a.localhost": "not public",
		"https://１６９.２５４.１６９.２５４": "not public", "https://169。254。169。254": "not public", "https://ⓛocalhost": "not public",
		"https://2852039166": "four decimal numbers", "https://0xa9fea9fe": "four decimal numbers", "https://0251.0376.0251.0376": "four decimal numbers",
		"https://169.254.43518": "four decimal numbers", "https://0x7F.1": "four decimal numbers", "https://127.0.0.1.": "four decimal numbers", "https://x.0x": "four decimal numbers", "https://1": "four decimal numbers",
		"https://a..b": "neither", "https://.": "neither", "https://*.example": "neither", "https://-a.example": "neither", "https://a-.example": "neither",
		"https://" + strings.Repeat("a", 64) + ".example": "neither", "https://" + strings.Repeat("a.", 130) + "example": "neither",
		"https://hooks.example:0": "no port", "https://hooks.example:65536": "no port",
	} {
		require.ErrorContains(t, networks.Check(parse(text)), why, text)
	}
	this := webhooks.Networks(loopback)
	for _, text := range []string{"http://localhost:80", "http://a.localhost", "http://127.1.2.3", "http://[::ffff:127.0.0.1]"} {
		require.NoError(t, this.Check(parse(text)), text)
	}
	require.ErrorContains(t, this.Check(parse("http://0x7f.1")), "four decimal numbers", "no message goes there, whatever is allowed")
}

// A receiver says when it wants to be asked again, as seconds or as a date. What it says else is not
// repeated.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	answer := func(http.ResponseWriter) {}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w) }))
	defer server.Close()
	post := func(url string) webhooks.Outcome {
		return webhooks.NewSender(loopback).Post(t.Context(), webhooks.Message{URL: url, ID: "x", Secrets: []string{webhooks.NewSecret()}, Body: []byte("{}")})
	}
	answer = func(w http.ResponseWriter) {
		w.Header().Set("Retry-After", "120")
		http.Error(w, "inner secret", http.StatusTooManyRequests)
	}
	o := post(server.URL)
	require.Equal(t, 2*time.Minute, o.After)
	require.Equal(t, "the receiver answers 429 Too Many Requests", o.Reason())
	answer = func(w http.ResponseWriter) {
		w.Header().Set("Retry-After", time.Now().Add(100*24*time.Hour).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	o = post(server.URL)
	require.Equal(t, 24*time.Hour, o.After)
	answer = func(w http.ResponseWriter) { w.WriteHeader(http.StatusGone) }
	o = post(server.URL)
	require.True(t, o.Gone())
	closed := strings.Replace(server.URL, "127.0.0.1", "127.0.0.2", 1) + "/path?token=hidden"
	o = post(closed)
	require.Error(t, o.Err)
	require.NotContains(t, o.Reason(), "hidden")
}
