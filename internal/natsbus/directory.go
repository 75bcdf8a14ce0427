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
	"strings"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Announce says that an instance runs these tools. It makes the pool's buckets
// if they are missing and the connection may.
func (b *Bus) Announce(ctx context.Context, pool, instance string, tools []events.ToolSpec) error {
	if err := journalcheck.Tools(pool, tools); err != nil {
		return err
	}
	body, err := encodeTools(tools)
	if err != nil {
		return fmt.Errorf("announce tools of pool %s: %w", pool, err)
	}
	create := func(ctx context.Context, _ kv.Bucket) error { return b.createPool(ctx, pool) }
	if err := b.announce(ctx, buckets.Tools(pool), kv.Item{Key: keyToken(instance), Value: body}, create); err != nil {
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
	err = b.announce(ctx, buckets.Providers, kv.Item{Key: keyToken(instance), Value: body, Header: map[string]string{claimsHeader: string(said)}}, b.createBucket)
	if err != nil {
		return fmt.Errorf("announce providers: %w", err)
	}
	return nil
}

// announce stores an announcement and notes what withdraw needs.
func (b *Bus) announce(ctx context.Context, of kv.Bucket, it kv.Item, create func(context.Context, kv.Bucket) error) error {
	seq, err := b.putItem(ctx, of, it, nil, create)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.announced[kvSubject(of.Name, it.Key)] = seq
	return nil
}

// Withdraw takes back what this bus announced for an instance of a pool. What another
// process announced for it since stays.
func (b *Bus) Withdraw(ctx context.Context, pool, instance string) error {
	return b.withdraw(ctx, buckets.Tools(pool), instance)
}

// WithdrawProviders does so for the model providers of an instance.
func (b *Bus) WithdrawProviders(ctx context.Context, instance string) error {
	return b.withdraw(ctx, buckets.Providers, instance)
}

// withdraw stores the mark by which a key of a bucket is deleted, if this bus was the last
// that wrote the key.
func (b *Bus) withdraw(ctx context.Context, of kv.Bucket, instance string) error {
	key := keyToken(instance)
	b.mu.Lock()
	seq, announced := b.announced[kvSubject(of.Name, key)]
	delete(b.announced, kvSubject(of.Name, key))
	b.mu.Unlock()
	if !announced {
		return nil
	}
	err := b.Delete(ctx, of, key, seq)
	if err == nil || errors.Is(err, journal.ErrConflict) || errors.Is(err, journal.ErrNotReady) {
		return nil
	}
	return fmt.Errorf("withdraw what %s announced in %s: %w", instance, of.Name, err)
}

// Claims returns what every instance that lives means by its names, sorted by instance.
func (b *Bus) Claims(ctx context.Context) ([]journal.Claim, error) {
	var all []journal.Claim
	for it, err := range b.Each(ctx, buckets.Providers, ">") {
		if err != nil {
			return nil, fmt.Errorf("list names: %w", err)
		}
		said := it.Header[claimsHeader]
		if said == "" {
			continue // an older planner
		}
		var c claims
		if err := json.Unmarshal([]byte(said), &c); err != nil {
			b.Log.Warn("an announcement cannot be read", "bucket", buckets.Providers.Name, "instance", it.Key, "reason", err)
			continue
		}
		for _, claim := range c.Claims {
			claim.Instance, claim.Seq = c.Instance, it.Revision
			all = append(all, claim)
		}
	}
	slices.SortStableFunc(all, func(x, y journal.Claim) int { return cmp.Compare(x.Instance, y.Instance) })
	return all, nil
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
	var all []events.ToolSpec
	for it, err := range b.Each(ctx, buckets.Tools(pool), ">") {
		if errors.Is(err, journal.ErrNotReady) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("list tools of pool %s: %w", pool, err)
		}
		var tools []events.ToolSpec
		if err := json.Unmarshal(it.Value, &tools); err != nil {
			b.Log.Warn("an announcement cannot be read", "bucket", buckets.ToolsPrefix+pool, "instance", it.Key, "reason", err)
			continue
		}
		for _, t := range tools {
			// Who writes to a pool's bucket speaks for that pool alone.
			if t.Pool == pool && !slices.ContainsFunc(all, func(o events.ToolSpec) bool { return reflect.DeepEqual(o, t) }) {
				all = append(all, t)
			}
		}
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
	for it, err := range b.Each(ctx, buckets.Providers, ">") {
		if err != nil {
			return nil, fmt.Errorf("list providers: %w", err)
		}
		var names []string
		if err := json.Unmarshal(it.Value, &names); err != nil {
			b.Log.Warn("an announcement cannot be read", "bucket", buckets.Providers.Name, "instance", it.Key, "reason", err)
		}
		for _, name := range names {
			found[name] = true
		}
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
		pool, err := journal.Pool{Name: name}, error(nil)
		for _, err = range b.Each(ctx, buckets.Tools(name), ">") {
			pool.Living = err == nil
		}
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
		b.Log.Warn("the tools of a pool may not be read: give the user permissions that name the pool", "pool", pool, "reason", err)
	}
}

// firstTime reports whether a warning was not logged before.
func (b *Bus) firstTime(what string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := !b.said[what]
	b.said[what] = true
	return first
}

func (b *Bus) livePools(ctx context.Context) ([]string, error) {
	names, err := b.StreamNames(ctx)
	if err != nil {
		return nil, err
	}
	var pools []string
	for _, name := range names {
		if pool, ok := strings.CutPrefix(name, kvStreamPrefix+buckets.ToolsPrefix); ok {
			pools = append(pools, pool)
		}
	}
	return pools, nil
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

// Offers returns what the gateways remember of announcements. Without the bucket, which
// PutOffers makes, the error is [journal.ErrNotReady].
func (b *Bus) Offers(ctx context.Context) (journal.Offers, error) {
	var o journal.Offers
	it, err := b.Get(ctx, buckets.Offers, buckets.Offers.Keys)
	switch {
	case errors.Is(err, journal.ErrNotFound) && it.Revision == 0:
		return o, nil
	case errors.Is(err, journal.ErrNotFound):
		err = errors.New("it was deleted with another tool") // who announced a name first would be decided anew
	case err == nil:
		err = json.Unmarshal(it.Value, &o)
	}
	if err != nil {
		return o, fmt.Errorf("what is remembered of announcements: %w", err)
	}
	o.Revision = it.Revision
	return o, nil
}

// PutOffers replaces what Offers returned.
func (b *Bus) PutOffers(ctx context.Context, o journal.Offers) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if _, err = b.Update(ctx, buckets.Offers, kv.Item{Key: buckets.Offers.Keys, Value: body, Revision: o.Revision}); err != nil {
		return fmt.Errorf("remember announcements: %w", err)
	}
	return nil
}

// assignedPools returns the pools of the tools that the operator has assigned.
func (b *Bus) assignedPools(ctx context.Context) (map[string]string, error) {
	info, err := b.shardInfo(ctx, 0)
	if err != nil {
		return nil, err
	}
	byPool, err := readPoolTools(info.Config.Metadata)
	if err != nil {
		return nil, err
	}
	pools := map[string]string{}
	for pool, tools := range byPool {
		for _, tool := range tools {
			pools[tool] = pool
		}
	}
	return pools, nil
}

// readPoolTools reads the operator's lists from the first stream's metadata.
func readPoolTools(metadata map[string]string) (map[string][]string, error) {
	byPool := map[string][]string{}
	text := metadata[metaTools]
	if text == "" {
		return byPool, nil
	}
	if err := json.Unmarshal([]byte(text), &byPool); err != nil {
		return nil, fmt.Errorf("stream %s: %s in its metadata is not a list of tools by pool: %w", events.StreamName(0), metaTools, err)
	}
	return byPool, nil
}

// withPoolTools adds the operator's lists to the metadata of the first stream: a pool that
// is named gets its list anew, none with an empty one; others keep theirs.
func withPoolTools(metadata, old map[string]string, lists map[string][]string) error {
	byPool, err := readPoolTools(old)
	if err != nil {
		return err
	}
	for pool, tools := range lists {
		if len(tools) == 0 {
			delete(byPool, pool)
			continue
		}
		tools = slices.Clone(tools)
		slices.Sort(tools)
		byPool[pool] = slices.Compact(tools)
	}
	if err := CheckPoolTools(byPool); err != nil {
		return err
	}
	if len(byPool) == 0 {
		return nil
	}
	text, err := json.Marshal(byPool)
	metadata[metaTools] = string(text)
	return err
}

// CheckPoolTools returns what is wrong with lists of tools by pool: a tool belongs to one.
func CheckPoolTools(byPool map[string][]string) error {
	of := map[string]string{}
	for _, pool := range slices.Sorted(maps.Keys(byPool)) {
		if !events.ValidToken(pool) {
			return fmt.Errorf("pool %q is not a token of [a-z0-9][a-z0-9_-]{0,62}", pool)
		}
		for _, tool := range byPool[pool] {
			if tool == "" || strings.ContainsAny(tool, "/ ,") {
				return fmt.Errorf("pool %s: %q is not the name of a tool", pool, tool)
			}
			if other, taken := of[tool]; taken && other != pool {
				return fmt.Errorf("the tool %s is assigned to the pools %s and %s: a tool belongs to one; `--pool-tools %s=` takes a pool's list away", tool, other, pool, other)
			}
			of[tool] = pool
		}
	}
	return nil
}

// owned drops the tools that the operator has assigned to other pools than the one that
// announces them, and says so once.
func (b *Bus) owned(ctx context.Context, tools []events.ToolSpec) ([]events.ToolSpec, error) {
	assigned, err := b.assignedPools(ctx)
	if err != nil || len(assigned) == 0 {
		return tools, err
	}
	return slices.DeleteFunc(tools, func(t events.ToolSpec) bool {
		pool, listed := assigned[t.Name]
		foreign := listed && pool != t.Pool
		if foreign && b.firstTime("announcement of "+t.Name+" by "+t.Pool) {
			b.Log.Warn("an announcement is ignored: the operator has assigned the tool to another pool", "tool", t.Name, "announced_by", t.Pool, "assigned_to", pool)
		}
		return foreign
	}), nil
}
