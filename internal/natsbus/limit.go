package natsbus

import (
	"context"
	"fmt"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// metaLimit is the key in a stream's metadata that says that init chose its limit
	// and may choose it anew.
	metaLimit = "moorebus_max_bytes"
	limitAuto = "auto"
	// The log gets two thirds of what the server may store. The rest is for timers, definitions, large
	// results and snapshots, which have no limits.
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
		if old != nil && old.Config.Metadata[metaLimit] == limitAuto && near(old.Config.MaxBytes, cfg.MaxBytes) {
			cfg.MaxBytes = old.Config.MaxBytes
		}
		cfg.Metadata[metaLimit] = limitAuto
		return true
	default:
		keepLimit(cfg, old)
	}
	return false
}

// near reports whether two limits differ by less than a tenth. What a disk has changes all the
// time, and a stream is not updated for that.
func near(old, wanted int64) bool { return max(old, wanted)-min(old, wanted) < wanted/10 }

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
	stream, err := o.putStream(ctx, js, cfg)
	if chosen && unreserved(err) {
		wanted, refusal := cfg.MaxBytes, err
		keepLimit(&cfg, old)
		if stream, err = o.putStream(ctx, js, cfg); err == nil {
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
	code, _ := api.Code(err)
	return code == api.CodeNoStorage || code == api.CodeNoResources || code == api.CodeNoPeers
}

// say passes on what Init could not do as was wanted.
func (o *InitOptions) say(format string, args ...any) {
	if o.Say != nil {
		o.Say(fmt.Sprintf(format, args...))
	}
}

// checkLimit checks how large a stream of the log may become, and how large it is.
func (e *examiner) checkLimit(info *jetstream.StreamInfo) {
	const initLimit = api.InitCommand + " --max-bytes 20GiB"
	most, used := info.Config.MaxBytes, info.State.Bytes
	switch {
	case info.Config.Storage != jetstream.FileStorage:
	case most <= 0:
		e.add(Warning, "`"+initLimit+"`, less than what the disk has: `moorebus purge` frees space",
			"stream %s has no max_bytes: it may fill the disk, and a server whose disk is full stores nothing until it is started again", info.Config.Name)
	case streamFull(info) != nil:
		e.add(Bad, "`moorebus purge` frees space, `"+initLimit+"` raises the limit", "stream %s is full: %d of %d bytes", info.Config.Name, used, most)
	case used > uint64(most)/10*9:
		e.add(Warning, "`moorebus purge` frees space, `"+initLimit+"` raises the limit", "stream %s is nearly full: %d of %d bytes", info.Config.Name, used, most)
	}
}

// stoppedByAHeader is the first version of nats-server of which is known that one
// message stops a stream that has replicas, see docs/explanation/upstream-expected-last-msg-id.md.
// No later version is known to have it mended: TestHeaderStopsReplicas says when.
const stoppedByAHeader = "2.14.0"

// checkReplicas says what a stream on several servers needs.
func (e *examiner) checkReplicas(info *jetstream.StreamInfo) {
	if info.Config.Replicas <= 1 {
		return
	}
	name := info.Config.Name
	if info.Cluster == nil || info.Cluster.Leader == "" {
		e.add(Bad, "see the servers' logs; if they say `last msgid mismatch`, docs/how-to/operate.md says how to recover (A stream that one message stopped)",
			"stream %s has no leader: nothing is stored", name)
	}
	if version := e.bus.NC.ConnectedServerVersion(); !olderThan(version, stoppedByAHeader) {
		e.add(Warning, "give the permission to publish only to users whom you trust with the availability of the log; docs/how-to/operate.md says how to recover",
			"nats-server %s stops stream %s for good if anybody who may publish into it sends the header Nats-Expected-Last-Msg-Id", version, events.StreamName(0))
	}
}
