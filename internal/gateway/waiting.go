package gateway

import (
	"fmt"
	"net"
	"net/http"
	"time"
)

// ServeWaiting answers on a listener while there is no bus yet: /healthz says
// that the process lives, everything else 503. The function that it returns
// ends that and leaves the listener to a [Gateway]; connections that come in
// between wait.
func ServeWaiting(listener *net.TCPListener) (end func() error) {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		_ = writeJSON(w, http.StatusOK, map[string]string{"status": "ok"}) // a client that is gone cannot be told so
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, &Error{Status: http.StatusServiceUnavailable, Code: CodeUnavailable, Message: "waiting for the bus"})
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	// No connection outlives this server: the next request must reach the next
	// one.
	server.SetKeepAlivesEnabled(false)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(keptOpen{listener}) }()
	return func() error {
		err := server.Close()
		<-ended
		if err != nil {
			return fmt.Errorf("gateway: %w", err)
		}
		return listener.SetDeadline(time.Time{})
	}
}

// keptOpen is a listener that a server cannot close: it only stops accepting,
// by a deadline in the past.
type keptOpen struct{ *net.TCPListener }

func (l keptOpen) Close() error { return l.SetDeadline(time.Unix(1, 0)) }
