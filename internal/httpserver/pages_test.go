package httpserver_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/httpserver"
)

func TestLocalHost(t *testing.T) {
	for host, local := range map[string]bool{
		"localhost": true, "localhost:8080": true, "127.0.0.1": true, "0.0.0.0:80": true, "[::1]:80": true, "[::ffff:127.0.0.1]": true, "agents.internal:1": true,
		"": false, "localhost.": false, "127.0.0.1.": false, "localhost.evil.example": false, "127.0.0.1.evil.example": false, "evil.example": false,
		"2130706433": false, "0x7f000001": false, "127.1": false, "[fe80::1%25evil.example]": false, "evil.example@127.0.0.1": false,
	} {
		require.Equal(t, local, httpserver.LocalHost(host, "agents.internal"), host)
	}
}

func TestWithoutPages(t *testing.T) {
	answers := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for name, c := range map[string]struct {
		at, host string
		header   map[string]string
		allowed  bool
	}{
		"a program":                      {at: "127.0.0.1:1", host: "127.0.0.1:1", allowed: true},
		"the address bar":                {at: "127.0.0.1:1", host: "localhost:1", header: map[string]string{"Sec-Fetch-Site": "none"}, allowed: true},
		"a link of its own page":         {at: "[::1]:1", host: "[::1]:1", header: map[string]string{"Sec-Fetch-Site": "same-origin"}, allowed: true},
		"a rebound name":                 {at: "127.0.0.1:1", host: "evil.example:1"},
		"a page of another site":         {at: "127.0.0.1:1", host: "127.0.0.1:1", header: map[string]string{"Sec-Fetch-Site": "cross-site"}},
		"another port of localhost":      {at: "127.0.0.1:1", host: "127.0.0.1:1", header: map[string]string{"Sec-Fetch-Site": "same-site"}},
		"a link of another site":         {at: "127.0.0.1:1", host: "127.0.0.1:1", header: map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}},
		"a file, in an old browser":      {at: "127.0.0.1:1", host: "127.0.0.1:1", header: map[string]string{"Origin": "null"}},
		"a scraper of another machine":   {at: "10.0.0.1:1", host: "scraped.example:1", allowed: true},
		"a scraper of every interface's": {at: "[::]:1", host: "scraped.example:1", allowed: true},
	} {
		at, err := net.ResolveTCPAddr("tcp", c.at)
		require.NoError(t, err)
		r := httptest.NewRequest("GET", "http://"+c.host+"/debug/pprof/profile", nil)
		for key, value := range c.header {
			r.Header.Set(key, value)
		}
		w := httptest.NewRecorder()
		httpserver.WithoutPages(at, answers).ServeHTTP(w, r)
		require.Equal(t, c.allowed, w.Code == http.StatusNoContent, name)
	}
}
