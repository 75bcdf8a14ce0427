package natsbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// metaLimit is the key in a stream's metadata that says that init chose its limit
	// and may choose it anew.
	metaLimit = "moorebus_max_bytes"
	limitAuto = "auto"
	// The log gets two thirds of what the server may store: beside it lie timers,
	// definitions, large results and snapshots, which have no limits of their own.
	logShare, logShareOf = 2, 3
)

// checkLimit returns an error if a stream of the log holds more than is asked for.
func (o *InitOptions) checkLimit(info *jetstream.StreamInfo) error {
	if o.MaxBytes > 0 && uint64(o.MaxBytes) < info.State.Bytes {
		return fmt.Errorf("max bytes of %s cannot be %d: it holds %d; purge runs first, or choose more", info.Config.Name, o.MaxBytes, info.State.Bytes)
	}
	return nil
}

// limit sets how large a stream of the log may become, given how it is, nil if it is
// not there yet. A limit that somebody set stays, and none is lower than what the
// stream holds.
func (o *InitOptions) limit(cfg *jetstream.StreamConfig, old *jetstream.StreamInfo) {
	has, used, chosen := int64(-1), uint64(0), true
	if old != nil {
		has, used = old.Config.MaxBytes, old.State.Bytes
		chosen = old.Config.Metadata[metaLimit] == limitAuto || has <= 0
	}
	switch {
	case o.MaxBytes > 0:
		cfg.MaxBytes = o.MaxBytes
	case o.Storable > 0 && chosen && cfg.Storage == jetstream.FileStorage && uint64(o.Storable) > used:
		all := o.Storable / int64(o.Shards)
		// A log that has its share already may grow by a quarter before it is full.
		cfg.MaxBytes = max(all/logShareOf*logShare, min(int64(used+used/4), all), int64(used))
		cfg.Metadata[metaLimit] = limitAuto
	default:
		cfg.MaxBytes = has
		if old != nil && old.Config.Metadata[metaLimit] != "" {
			cfg.Metadata[metaLimit] = old.Config.Metadata[metaLimit]
		}
	}
}

// Monitored is what a server says of itself where its monitoring is on.
type Monitored struct {
	// SyncAlways says that it flushes every message before it acknowledges it.
	SyncAlways bool
	// Storable is how many bytes its streams may have together.
	Storable int64
}

// ErrNoMonitoring says that nothing was heard from the server's monitoring.
var ErrNoMonitoring = errors.New("the server's monitoring does not answer")

// monitorTimeout bounds the question.
const monitorTimeout = 2 * time.Second

// Monitor asks the monitoring of the server that the connection leads to, at the
// address, such as http://127.0.0.1:8222, or where it is by default. Another server
// is not believed. The error is ErrNoMonitoring.
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
		return Monitored{}, join(ErrNoMonitoring, err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return Monitored{}, join(ErrNoMonitoring, err)
	}
	defer func() { _ = response.Body.Close() }()
	var said struct {
		ID     string `json:"server_id"`
		Config struct {
			SyncAlways bool  `json:"sync_always"`
			MaxStorage int64 `json:"max_storage"`
		} `json:"config"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(nil, response.Body, 1<<20)).Decode(&said); err != nil {
		return Monitored{}, fmt.Errorf("%w: %s/jsz: %w", ErrNoMonitoring, at, err)
	}
	if said.ID != conn.ConnectedServerId() {
		return Monitored{}, fmt.Errorf("%w: %s is another server's", ErrNoMonitoring, at)
	}
	return Monitored{SyncAlways: said.Config.SyncAlways, Storable: said.Config.MaxStorage}, nil
}

// checkLimit looks at how large a stream of the log may become, and how large it is.
func (e *examiner) checkLimit(info *streamInfo) {
	const initLimit = initCommand + " --max-bytes 20GiB"
	most, used := info.Config.MaxBytes, info.State.Bytes
	switch {
	case info.Config.Storage != jetstream.FileStorage:
	case most <= 0:
		e.add(Warning, "`"+initLimit+"`, less than what the disk has: `moorebus purge` makes room",
			"stream %s has no max_bytes: it may fill the disk, and a server whose disk is full stores nothing until it is started again", info.Config.Name)
	case info.full() != nil:
		e.add(Bad, "`moorebus purge` makes room, `"+initLimit+"` raises the limit", "stream %s is full: %d of %d bytes", info.Config.Name, used, most)
	case used > uint64(most)/10*9:
		e.add(Warning, "`moorebus purge` makes room, `"+initLimit+"` raises the limit", "stream %s is nearly full: %d of %d bytes", info.Config.Name, used, most)
	}
}

// stoppedByAHeader is the first version of nats-server of which is known that one
// message stops a stream that has replicas, see docs/upstream-expected-last-msg-id.md.
// No later version is known to have it mended: TestHeaderStopsReplicas says when.
const stoppedByAHeader = "2.14.0"

// checkReplicas says what a stream on several servers needs.
func (e *examiner) checkReplicas(info *streamInfo) {
	if info.Config.Replicas <= 1 {
		return
	}
	name := info.Config.Name
	if info.Cluster.Leader == "" {
		e.add(Bad, "see the servers' logs; if they say `last msgid mismatch`, docs/operations.md has what mends it (A stream that one message stopped)",
			"stream %s has no leader: nothing is stored", name)
	}
	if version := e.bus.conn.ConnectedServerVersion(); !olderThan(version, stoppedByAHeader) {
		e.add(Warning, "let nobody publish whom you do not trust with the availability of the log; docs/operations.md has what mends it",
			"nats-server %s stops stream %s for good if anybody who may publish into it sends the header Nats-Expected-Last-Msg-Id", version, events.StreamName(0))
	}
}
