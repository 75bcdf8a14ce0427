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
// not there yet, and reports whether it chose that itself. A limit that somebody set
// stays, and none is lower than what the stream holds.
func (o *InitOptions) limit(cfg *jetstream.StreamConfig, old *jetstream.StreamInfo) (chosen bool) {
	used, mayChoose := uint64(0), true
	if old != nil {
		used = old.State.Bytes
		// The servers of a cluster say what they cannot reserve only when a stream is made.
		mayChoose = cfg.Replicas <= 1 && (old.Config.Metadata[metaLimit] == limitAuto || old.Config.MaxBytes <= 0)
	}
	switch {
	case o.MaxBytes > 0:
		cfg.MaxBytes = o.MaxBytes
	case o.Storable > 0 && mayChoose && cfg.Storage == jetstream.FileStorage && uint64(o.Storable) > used:
		all := o.Storable / int64(o.Shards)
		// A log that has its share already may grow by a quarter before it is full.
		cfg.MaxBytes = max(all/logShareOf*logShare, min(int64(used+used/4), all), int64(used))
		cfg.Metadata[metaLimit] = limitAuto
		return true
	default:
		keepLimit(cfg, old)
	}
	return false
}

// keepLimit leaves a stream the limit that it has, if any.
func keepLimit(cfg *jetstream.StreamConfig, old *jetstream.StreamInfo) {
	cfg.MaxBytes = -1
	delete(cfg.Metadata, metaLimit)
	if old == nil {
		return
	}
	cfg.MaxBytes = old.Config.MaxBytes
	if by := old.Config.Metadata[metaLimit]; by != "" {
		cfg.Metadata[metaLimit] = by
	}
}

// putLog creates or updates a stream of the log, with its limit. The server reserves that
// much for the stream; where it will not reserve what was chosen here, the stream keeps
// what it has.
func (o *InitOptions) putLog(ctx context.Context, js jetstream.JetStream, cfg jetstream.StreamConfig, old *jetstream.StreamInfo) (jetstream.Stream, error) {
	chosen := o.limit(&cfg, old)
	stream, err := js.CreateOrUpdateStream(ctx, cfg)
	if chosen && unreserved(err) {
		wanted, refusal := cfg.MaxBytes, err
		keepLimit(&cfg, old)
		if stream, err = js.CreateOrUpdateStream(ctx, cfg); err == nil {
			has := "has no limit"
			if cfg.MaxBytes > 0 {
				has = fmt.Sprintf("keeps its limit of %d bytes", cfg.MaxBytes)
			}
			o.say("stream %s %s: %d bytes cannot be reserved for it (%s); --max-bytes sets a smaller limit", cfg.Name, has, wanted, refusal)
			return stream, nil
		}
	}
	switch {
	case err != nil && cfg.MaxBytes > 0:
		return nil, fmt.Errorf("stream %s with max bytes %d: %w", cfg.Name, cfg.MaxBytes, err)
	case err != nil:
		return nil, fmt.Errorf("stream %s: %w", cfg.Name, err)
	case cfg.MaxBytes <= 0 && cfg.Storage == jetstream.FileStorage:
		o.say("stream %s has no limit and may fill the disk: set one with --max-bytes, or name the server's monitoring with --monitor so that init can choose one", cfg.Name)
	}
	return stream, nil
}

// unreserved reports whether the server refused a stream since it cannot reserve what the
// stream may store.
func unreserved(err error) bool {
	code, _ := errorCode(err)
	return code == codeNoStorage || code == codeNoResources || code == codeNoPeers
}

// say passes on what Init could not do as was wanted.
func (o *InitOptions) say(format string, args ...any) {
	if o.Say != nil {
		o.Say(fmt.Sprintf(format, args...))
	}
}

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
