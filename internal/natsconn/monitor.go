package natsconn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/nats-io/nats.go"
)

// Monitored is what a server says of itself where its monitoring is on.
type Monitored struct {
	// Own says that it is the server that the connection leads to; else it is another one
	// of its cluster.
	Own bool
	// SyncAlways says that it flushes every message before it acknowledges it.
	SyncAlways bool
	// Storable is how many bytes its streams may have together, Reserved how many of
	// them the limits of streams take up.
	Storable, Reserved int64
}

// ErrNoMonitoring says that nothing was heard from the server's monitoring.
var ErrNoMonitoring = errors.New("the server's monitoring does not answer")

// monitorTimeout bounds the question.
const monitorTimeout = 2 * time.Second

// Monitor asks the monitoring of the server that the connection leads to, or of another one
// of its cluster, at the address, such as http://127.0.0.1:8222, or where it is by default.
// A server of another cluster is not believed. The error is ErrNoMonitoring.
func Monitor(ctx context.Context, conn *nats.Conn, at string) (Monitored, error) {
	if at == "" {
		server, err := url.Parse(conn.ConnectedUrl())
		if err != nil || server.Hostname() == "" {
			return Monitored{}, ErrNoMonitoring
		}
		at = "http://" + server.Hostname() + ":8222"
	}
	ctx, cancel := context.WithTimeout(ctx, monitorTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at+"/jsz", nil)
	if err != nil {
		return Monitored{}, fmt.Errorf("%w: %w", ErrNoMonitoring, err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return Monitored{}, fmt.Errorf("%w: %w", ErrNoMonitoring, err)
	}
	defer func() { _ = response.Body.Close() }()
	var said struct {
		ID     string `json:"server_id"`
		Config struct {
			SyncAlways bool  `json:"sync_always"`
			MaxStorage int64 `json:"max_storage"`
		} `json:"config"`
		Reserved int64 `json:"reserved_storage"`
		Meta     struct {
			Name string `json:"name"`
		} `json:"meta_cluster"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(nil, response.Body, 1<<20)).Decode(&said); err != nil {
		return Monitored{}, fmt.Errorf("%w: %s/jsz: %w", ErrNoMonitoring, at, err)
	}
	own := said.ID == conn.ConnectedServerId()
	if cluster := conn.ConnectedClusterName(); !own && (cluster == "" || cluster != said.Meta.Name) {
		return Monitored{}, fmt.Errorf("%w: %s is another server's, and not of the same cluster", ErrNoMonitoring, at)
	}
	return Monitored{Own: own, SyncAlways: said.Config.SyncAlways, Storable: said.Config.MaxStorage, Reserved: said.Reserved}, nil
}
