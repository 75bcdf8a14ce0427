package webhooks

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/feature/webhooks/row"
	"github.com/moorebus/moorebus/internal/refusal"
)

// What a client says of a push goes into headers as it is, and what could end a header is refused.
func TestHeadersOfPushes(t *testing.T) {
	for scheme, want := range map[string]string{"Bearer": "Bearer a:b", "Basic": "Basic " + base64.StdEncoding.EncodeToString([]byte("a:b")), "": ""} {
		p := control.Push{URL: "https://example.org/", Token: "t", Scheme: scheme, Credentials: "a:b"}
		if scheme == "" {
			p.Credentials = ""
		}
		require.NoError(t, checkPush(&p))
		var m Message
		address(&p, &m, "application/a2a+json")
		require.Equal(t, want, m.Header["Authorization"])
		require.Equal(t, "t", m.Header[tokenHeader])
		require.Equal(t, "application/a2a+json", m.Media)
	}
	for what, p := range map[string]control.Push{
		"url":                        {URL: "http://example.org/"},
		"token":                      {URL: "https://example.org/", Token: "a\r\nb: c"},
		"id":                         {URL: "https://example.org/", ID: strings.Repeat("x", maxPushText+1)},
		"authentication.scheme":      {URL: "https://example.org/", Credentials: "c"},
		"authentication.credentials": {URL: "https://example.org/", Scheme: "Bearer", Credentials: "a\nb"},
	} {
		err := checkPush(&p)
		require.True(t, refusal.Is(err, row.CodeBadWebhook), what)
		require.ErrorContains(t, err, what+":")
	}
}
