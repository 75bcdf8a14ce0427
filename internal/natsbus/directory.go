package natsbus

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

const (
	// kvOperation marks a message of a bucket that deletes a key.
	kvOperation = "KV-Operation"
	// maxLast is how many keys a server reads at once.
	maxLast = 1024
)

// Announce says that an instance runs these tools. It makes the pool's buckets
// if they are missing and the connection may.
func (b *Bus) Announce(ctx context.Context, pool, instance string, tools []events.ToolSpec) error {
	if err := journal.CheckTools(pool, tools); err != nil {
		return err
	}
	body, err := encodeTools(tools)
	if err != nil {
		return fmt.Errorf("announce tools of pool %s: %w", pool, err)
	}
	msg := &nats.Msg{Subject: kvSubjectPrefix + toolsPrefix + pool + "." + keyToken(instance), Data: body}
	if err := b.announce(ctx, msg, func() error { return b.createPool(ctx, pool) }); err != nil {
		return fmt.Errorf("announce tools of pool %s: %w", pool, err)
	}
	return nil
}

// encodeTools is the tools as JSON that is not escaped like that of HTML, which
// would make up to six bytes of one.
func encodeTools(tools []events.ToolSpec) ([]byte, error) {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(tools); err != nil {
		return nil, err
	}
	return bytes.TrimRight(body.Bytes(), "\n"), nil
}

// claimsHeader has the claims of an announcement of providers, whose body is their
// names alone.
const claimsHeader = "Moorebus-Claims"

// claims is what the header has.
type claims struct {
	Instance string          `json:"instance"`
	Claims   []journal.Claim `json:"claims"`
}

// AnnounceProviders says that an instance reaches these model providers, and what it
// means by names.
func (b *Bus) AnnounceProviders(ctx context.Context, instance string, names []string, all ...journal.Claim) error {
	body, err := json.Marshal(names)
	if err != nil {
		return fmt.Errorf("announce providers: %w", err)
	}
	said, err := json.Marshal(claims{instance, all})
	if err != nil {
		return fmt.Errorf("announce providers: %w", err)
	}
	msg := &nats.Msg{
		Subject: kvSubjectPrefix + providerBucket + "." + keyToken(instance), Data: body,
		Header: nats.Header{claimsHeader: []string{string(said)}},
	}
	err = b.announce(ctx, msg, func() error { return b.createBucket(ctx, providersConfig(b.replicas)) })
	if err != nil {
		return fmt.Errorf("announce providers: %w", err)
	}
	return nil
}

// announce is putMsg for an announcement, which can then be withdrawn.
func (b *Bus) announce(ctx context.Context, msg *nats.Msg, create func() error) error {
	seq, err := b.putMsg(ctx, msg, create)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.announced[msg.Subject] = seq
	return nil
}

// Withdraw takes back what this bus announced for an instance of a pool. What another
// process announced for it since stays.
func (b *Bus) Withdraw(ctx context.Context, pool, instance string) error {
	return b.withdraw(ctx, toolsPrefix+pool, instance)
}

// WithdrawProviders does so for the model providers of an instance.
func (b *Bus) WithdrawProviders(ctx context.Context, instance string) error {
	return b.withdraw(ctx, providerBucket, instance)
}

// withdraw stores the mark by which a key of a bucket is deleted, if this bus was the last
// that wrote the key.
func (b *Bus) withdraw(ctx context.Context, bucket, instance string) error {
	msg := nats.NewMsg(kvSubjectPrefix + bucket + "." + keyToken(instance))
	b.mu.Lock()
	seq, announced := b.announced[msg.Subject]
	delete(b.announced, msg.Subject)
	b.mu.Unlock()
	if !announced {
		return nil
	}
	msg.Header.Set(kvOperation, "DEL")
	msg.Header.Set(headerExpectSeq, strconv.FormatUint(seq, 10))
	_, err := b.store(ctx, msg)
	if err == nil || errors.Is(err, journal.ErrConflict) || errors.Is(err, journal.ErrNotReady) {
		return nil
	}
	return fmt.Errorf("withdraw what %s announced in %s: %w", instance, bucket, err)
}

// Claims returns what every instance that lives means by its names, sorted by instance.
func (b *Bus) Claims(ctx context.Context) ([]journal.Claim, error) {
	var all []journal.Claim
	err := b.entries(ctx, providerBucket, ">", func(msg *nats.Msg, rec journal.Record) error {
		said := header(msg, claimsHeader)
		if said == "" {
			return nil // an older planner
		}
		var c claims
		if err := json.Unmarshal([]byte(said), &c); err != nil {
			b.log.Warn("an announcement cannot be read", "bucket", providerBucket, "subject", rec.Subject, "error", err)
			return nil
		}
		for _, claim := range c.Claims {
			claim.Instance, claim.Seq = c.Instance, rec.Seq
			all = append(all, claim)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list names: %w", err)
	}
	slices.SortStableFunc(all, func(x, y journal.Claim) int { return cmp.Compare(x.Instance, y.Instance) })
	return all, nil
}

// put stores a value and waits for the acknowledgement. Where no stream takes it,
// create is tried once.
func (b *Bus) put(ctx context.Context, subject string, body []byte, create func() error) error {
	_, err := b.putMsg(ctx, &nats.Msg{Subject: subject, Data: body}, create)
	return err
}

// putMsg is put for a message and returns its sequence number.
func (b *Bus) putMsg(ctx context.Context, msg *nats.Msg, create func() error) (uint64, error) {
	again := nats.Msg{Subject: msg.Subject, Data: msg.Data, Header: maps.Clone(msg.Header)}
	seq, err := b.store(ctx, msg)
	if !errors.Is(err, journal.ErrNotReady) || create == nil {
		return seq, err
	}
	if made := create(); made != nil {
		return 0, errors.Join(err, made)
	}
	return b.store(ctx, &again)
}

// store publishes a message into a bucket and returns its sequence number.
func (b *Bus) store(ctx context.Context, msg *nats.Msg) (uint64, error) {
	if err := b.diskFull(); err != nil {
		return 0, err
	}
	answer, err := b.requestStored(ctx, b.opts.RequestTimeout, msg)
	if errors.Is(err, nats.ErrNoResponders) {
		return 0, fmt.Errorf("%w: no bucket takes %s: run `%s`: %w", journal.ErrNotReady, msg.Subject, initCommand, err)
	}
	if err != nil {
		return 0, classify(err)
	}
	var ack pubAck
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return 0, fmt.Errorf("acknowledgement %.100q: %w", answer.Data, err)
	}
	if ack.Error != nil {
		return 0, b.full.note(placeOf(msg.Subject), classify(ack.Error))
	}
	return ack.Seq, b.full.note(placeOf(msg.Subject), nil)
}

// Tools returns every tool that lives, sorted by name and pool.
func (b *Bus) Tools(ctx context.Context) ([]events.ToolSpec, error) {
	pools, err := b.livePools(ctx)
	if err != nil {
		return nil, fmt.Errorf("list tools: %w", err)
	}
	var all []events.ToolSpec
	for _, pool := range pools {
		tools, err := b.PoolTools(ctx, pool)
		if errors.Is(err, journal.ErrDenied) {
			b.warnUnreadable(pool, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, tools...)
	}
	sortTools(all)
	return b.owned(ctx, all)
}

// PoolTools returns the tools of one pool that live, sorted by name.
func (b *Bus) PoolTools(ctx context.Context, pool string) ([]events.ToolSpec, error) {
	bucket := toolsPrefix + pool
	var all []events.ToolSpec
	err := b.values(ctx, bucket, ">", func(key string, value []byte) error {
		var tools []events.ToolSpec
		if err := json.Unmarshal(value, &tools); err != nil {
			b.log.Warn("an announcement cannot be read", "bucket", bucket, "instance", key, "error", err)
			return nil
		}
		for _, t := range tools {
			// Who writes to a pool's bucket speaks for that pool alone.
			if t.Pool == pool && !slices.ContainsFunc(all, func(o events.ToolSpec) bool { return reflect.DeepEqual(o, t) }) {
				all = append(all, t)
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, journal.ErrNotReady) {
		return nil, fmt.Errorf("list tools of pool %s: %w", pool, err)
	}
	sortTools(all)
	return all, nil
}

func sortTools(all []events.ToolSpec) {
	slices.SortStableFunc(all, func(x, y events.ToolSpec) int {
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Pool, y.Pool), cmp.Compare(x.Description, y.Description))
	})
}

// Providers returns the names of every provider that lives, sorted.
func (b *Bus) Providers(ctx context.Context) ([]string, error) {
	found := make(map[string]bool)
	err := b.values(ctx, providerBucket, ">", func(key string, value []byte) error {
		var names []string
		if err := json.Unmarshal(value, &names); err != nil {
			b.log.Warn("an announcement cannot be read", "bucket", providerBucket, "instance", key, "error", err)
		}
		for _, name := range names {
			found[name] = true
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list providers: %w", err)
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// Pools returns every pool that has a bucket of tools that may be read, and which
// of them live.
func (b *Bus) Pools(ctx context.Context) ([]journal.Pool, error) {
	names, err := b.livePools(ctx)
	if err != nil {
		return nil, fmt.Errorf("list pools: %w", err)
	}
	pools := make([]journal.Pool, 0, len(names))
	for _, name := range names {
		pool := journal.Pool{Name: name}
		err := b.values(ctx, toolsPrefix+name, ">", func(string, []byte) error {
			pool.Living = true
			return nil
		})
		switch {
		case errors.Is(err, journal.ErrDenied):
			b.warnUnreadable(name, err)
			continue
		case err != nil:
			return nil, fmt.Errorf("list pools: pool %s: %w", name, err)
		}
		pools = append(pools, pool)
	}
	slices.SortFunc(pools, func(x, y journal.Pool) int { return cmp.Compare(x.Name, y.Name) })
	return pools, nil
}

// warnUnreadable says once that a pool came after this user's permissions were
// given.
func (b *Bus) warnUnreadable(pool string, err error) {
	if b.firstTime("may not read " + pool) {
		b.log.Warn("the tools of a pool may not be read: give the user permissions that name the pool", "pool", pool, "error", err)
	}
}

// firstTime reports whether something is to be said that was not said before.
func (b *Bus) firstTime(what string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := !b.said[what]
	b.said[what] = true
	return first
}

// livePools returns the pools that have a bucket of tools.
func (b *Bus) livePools(ctx context.Context) ([]string, error) {
	names, err := b.streamNames(ctx)
	if err != nil {
		return nil, err
	}
	var pools []string
	for _, name := range names {
		if pool, ok := strings.CutPrefix(name, kvStreamPrefix+toolsPrefix); ok {
			pools = append(pools, pool)
		}
	}
	return pools, nil
}

func (b *Bus) streamNames(ctx context.Context) ([]string, error) {
	var names []string
	for {
		request, err := json.Marshal(map[string]int{"offset": len(names)})
		if err != nil {
			return nil, err
		}
		var page struct {
			Total   int       `json:"total"`
			Streams []string  `json:"streams"`
			Error   *apiError `json:"error"`
		}
		if err := b.ask(ctx, "STREAM.NAMES", request, &page); err != nil {
			return nil, err
		}
		if page.Error != nil {
			return nil, classify(page.Error)
		}
		names = append(names, page.Streams...)
		if len(page.Streams) == 0 || len(names) >= page.Total {
			return names, nil
		}
	}
}

// values hands the bucket's live keys that match and their values to take, some of them
// twice. It needs no consumer. A replica that lacks what the leader has is asked again.
func (b *Bus) values(ctx context.Context, bucket, keys string, take func(key string, value []byte) error) error {
	prefix := kvSubjectPrefix + bucket + "."
	return b.entries(ctx, bucket, keys, func(_ *nats.Msg, rec journal.Record) error {
		return take(strings.TrimPrefix(rec.Subject, prefix), rec.Body)
	})
}

// entries is values for the messages themselves.
func (b *Bus) entries(ctx context.Context, bucket, keys string, take func(*nats.Msg, journal.Record) error) error {
	r, err := b.newReader(kvStreamPrefix+bucket, maxLast)
	if err != nil {
		return err
	}
	defer r.close()
	var failed error
	request := getRequest{MultiLast: []string{kvSubjectPrefix + bucket + "." + keys}, Batch: maxLast}
	for try := 1; ; try++ {
		got := map[string]bool{}
		_, err = r.page(ctx, request, func(msg *nats.Msg, rec journal.Record) bool {
			got[rec.Subject] = true
			if header(msg, kvOperation) == "" {
				failed = take(msg, rec)
			}
			return failed == nil
		})
		if err == nil {
			err = b.lacksNothing(ctx, kvStreamPrefix+bucket, kvSubjectPrefix+bucket+"."+keys, got)
		}
		if !errors.Is(err, errGap) && !errors.Is(err, errLag) && !errors.Is(err, nats.ErrNoResponders) || try >= silentPages || !pauseFor(ctx, readRetry) {
			break
		}
	}
	if failed != nil {
		return failed
	}
	if err != nil {
		return b.explain(ctx, kvStreamPrefix+bucket, err)
	}
	return nil
}

// lacksNothing returns errLag if the stream's leader has subjects that a replica did not
// answer with.
func (b *Bus) lacksNothing(ctx context.Context, stream, filter string, got map[string]bool) error {
	if b.replicas <= 1 {
		return nil // who answered is the leader
	}
	lags := false
	err := b.subjects(ctx, stream, filter, func(subject string) { lags = lags || !got[subject] })
	if err == nil && lags {
		err = errLag
	}
	return err
}

// keyToken makes a key of one token out of any name: what a key may not hold
// becomes an underscore.
func keyToken(name string) string {
	token := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '=', r == '/':
			return r
		}
		return '_'
	}, name)
	if token == "" {
		return "_"
	}
	return token
}
