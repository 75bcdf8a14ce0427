package gatewaylog_test

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/gatewaylog"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/refusal"
)

func connect(t *testing.T, o gatewaylog.Options) (*gatewaylog.Client, error) {
	t.Helper()
	c, err := gatewaylog.New(o)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c, c.Connect(t.Context())
}

// The token goes to the gateway that was named, and to nobody else.
func TestRedirectionsAreRefused(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was asked") }))
	defer other.Close()
	moved := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer moved.Close()
	_, err := connect(t, gatewaylog.Options{URL: moved.URL, Token: "secret"})
	require.ErrorContains(t, err, "redirects to")
}

func TestWhatIsNoGateway(t *testing.T) {
	for _, bad := range []string{"", "localhost:8080", "nats://localhost", "http://", "http://ann:secret@host", "http://host?x=1", "http://host/#x", "::"} {
		_, err := gatewaylog.New(gatewaylog.Options{URL: bad})
		require.Error(t, err, bad)
		require.NotContains(t, err.Error(), "secret")
	}
	_, err := gatewaylog.New(gatewaylog.Options{URL: "https://host", CA: filepath.Join(t.TempDir(), "none")})
	require.ErrorIs(t, err, os.ErrNotExist)
	for status, want := range map[int]string{200: "without the header Moorebus-Position", 404: "answers 404", 502: "answers 502"} {
		page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		_, err := connect(t, gatewaylog.Options{URL: page.URL})
		page.Close()
		require.ErrorContains(t, err, want)
		require.Equal(t, status == 502, refusal.Is(err, refusal.CodeUnavailable), "a proxy without its gateway: try again")
	}
}

// A connection that breaks off says that another attempt may help.
func TestBrokenConnection(t *testing.T) {
	broken := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer broken.Close()
	_, err := connect(t, gatewaylog.Options{URL: broken.URL})
	require.True(t, refusal.Is(err, refusal.CodeUnavailable), "%v", err)
	require.ErrorIs(t, err, io.EOF)
}

// Only a gateway that refuses a connection for want of a certificate is said to want one. Another
// failure is what it is, also after the gateway has asked for a certificate.
func TestCertificateThatIsWanted(t *testing.T) {
	serve := func(auth tls.ClientAuthType, answer http.HandlerFunc) (*httptest.Server, gatewaylog.Options) {
		s := httptest.NewUnstartedServer(answer)
		s.TLS = &tls.Config{ClientAuth: auth}
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.StartTLS()
		t.Cleanup(s.Close)
		ca := filepath.Join(t.TempDir(), "ca.pem")
		require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600))
		return s, gatewaylog.Options{URL: s.URL, CA: ca}
	}
	strict, o := serve(tls.RequireAnyClientCert, func(http.ResponseWriter, *http.Request) { t.Error("it lets a client in without a certificate") })
	c, err := connect(t, o)
	require.ErrorIs(t, err, gatewaylog.ErrCertificateWanted)
	gone, leave := context.WithCancel(t.Context())
	leave()
	err = c.Connect(gone)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, gatewaylog.ErrCertificateWanted)
	strict.Close()
	err = c.Connect(t.Context())
	require.True(t, refusal.Is(err, refusal.CodeUnavailable), "%v", err)

	var down atomic.Bool
	_, o = serve(tls.RequestClientCert, func(w http.ResponseWriter, _ *http.Request) {
		if w.Header().Set("Connection", "close"); down.Load() {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Moorebus-Position", "0:1")
	})
	c, err = connect(t, o)
	require.NoError(t, err)
	down.Store(true)
	err = c.Connect(t.Context())
	require.True(t, refusal.Is(err, refusal.CodeUnavailable), "%v", err)
}

// The certificate of a gateway is checked, against the named authority if there is one.
func TestCertificates(t *testing.T) {
	gateway := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" || r.Header.Get("Moorebus-Namespace") == "other" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"code": "unauthorized", "message": "No.", "run": "x"}`))
			return
		}
		w.Header().Set("Moorebus-Position", "0:1,1:7,2:0")
	}))
	defer gateway.Close()
	_, err := connect(t, gatewaylog.Options{URL: gateway.URL, Token: "secret"})
	require.ErrorContains(t, err, "certificate")
	require.False(t, refusal.Is(err, refusal.CodeUnavailable), "another attempt is no better")

	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: gateway.Certificate().Raw}), 0o600))
	c, err := connect(t, gatewaylog.Options{URL: gateway.URL + "/", Token: "secret", CA: ca})
	require.NoError(t, err)
	require.Equal(t, 3, c.Shards())
	last, err := c.Last(t.Context(), 1)
	require.NoError(t, err)
	require.EqualValues(t, 7, last)
	_, err = requests.ListAgents.Call(t.Context(), c.API, requests.Scope{Namespace: "other"})
	var refused *refusal.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, &refusal.Error{Kind: refusal.Unauthorized, Code: refusal.CodeUnauthorized, Message: "No.", Fields: map[string]any{"run": "x"}}, refused)
	_, err = connect(t, gatewaylog.Options{URL: gateway.URL, Token: "wrong", CA: ca})
	require.True(t, refusal.Is(err, refusal.CodeUnauthorized), "%v", err)
}

// A connection may break before the alert that refuses it can be read. HTTP/2 has errors of its own for
// that, of which a client meets one in a while.
func TestCertificateThatIsWantedOverHTTP2(t *testing.T) {
	s := httptest.NewUnstartedServer(nil)
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600))
	for range 100 {
		_, err := connect(t, gatewaylog.Options{URL: s.URL, CA: ca})
		require.ErrorIs(t, err, gatewaylog.ErrCertificateWanted)
	}
}
