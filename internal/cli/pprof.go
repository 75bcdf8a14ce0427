package cli

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

// profileHeader bounds how long a client of the profiles may take to ask. What it
// asks for takes as long as it wants: it is a profile of some time.
const profileHeader = 5 * time.Second

// ServePprof serves the process's profiles where --pprof says, until stop is
// called; without the flag it does nothing. An address without a host is on
// loopback. It fails with a usage error for what is no address, and with
// [ExitConfig] where nobody can listen, and beyond loopback, since who reaches it is
// not asked for credentials. logger is told the address.
func (f *RoleFlags) ServePprof(logger *slog.Logger) (stop func(), err error) {
	if f.pprof == "" {
		return func() {}, nil
	}
	host, port, err := net.SplitHostPort(f.pprof)
	if err != nil {
		return nil, Usage("--pprof: %q is not an address; use host:port, as in 127.0.0.1:6060, or :6060 for loopback", f.pprof)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	listener, err := Listen(f.flags, "pprof", net.JoinHostPort(host, port), "", nil)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: profiles(), ReadHeaderTimeout: profileHeader}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			logger.Warn("profiles are served no more", "error", err)
		}
	}()
	logger.Info("serving profiles", "url", "http://"+listener.Addr().String()+"/debug/pprof/")
	return func() {
		_ = server.Close() // a profile that is being taken is of no use any more
		<-ended
	}, nil
}

// profiles is a mux of its own: nothing else that registers itself with net/http's
// default one is served. The command line is left out, since it may hold the
// password of a bus.
func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/cmdline", http.NotFound)
	return mux
}
