package httpserver

import (
	"net"
	"net/http"
	"slices"
	"strings"
)

// A listener that asks for no token is reached by every page in the browser of its user. What a browser
// says of a request tells these pages from its own.

// LocalHost reports whether a Host header is localhost, an IP address or one of names. Any other name
// could be that of a web page whose owner lets it point here (DNS rebinding).
func LocalHost(host string, names ...string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return host == "localhost" || net.ParseIP(strings.Trim(host, "[]")) != nil || slices.Contains(names, host)
}

// OfAnotherSite reports whether a browser makes the request because a page of another site wants it. Other
// ports of localhost are other sites here. Programs and old browsers do not say it.
func OfAnotherSite(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site != "" && site != "same-origin" && site != "none"
}

// OpensPage reports whether the request opens a page in a window, as a link does.
func OpensPage(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) &&
		r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// WithoutPages refuses the requests of web pages to a server on loopback. at is where it listens; elsewhere
// nothing is refused, since its clients may name it as they like.
func WithoutPages(at net.Addr, next http.Handler) http.Handler {
	if tcp, ok := at.(*net.TCPAddr); !ok || !tcp.IP.IsLoopback() {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !LocalHost(r.Host) || OfAnotherSite(r) || r.Header.Get("Origin") != "" {
			http.Error(w, "requests from web pages are refused; use localhost or an IP address", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
