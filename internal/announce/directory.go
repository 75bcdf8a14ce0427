package announce

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Directory has what actors and planners announce. An announcement is live for
// [buckets.AnnouncementTTL], and longer if it is repeated. Make it with [NewDirectory]. It is safe for
// concurrent use. Errors are those of [kv.Store].
type Directory struct {
	store kv.Store
	log   *slog.Logger

	mu sync.Mutex
	// announced has the revisions of what this directory announced last, by bucket and key.
	announced map[[2]string]uint64
	// said has the warnings that were logged.
	said map[string]bool
	// read has what was read last of each pool of tools.
	read map[string]poolRead
	// offers is what offersBody says, which was read last.
	offersBody []byte
	offers     Offers
}

// poolRead is what the live instances of a pool announce.
type poolRead struct {
	// living says that there is an announcement, readable or not.
	living bool
	// by has what each instance announces, by key.
	by map[string]decoded
	// tools is all of it, as [Directory.PoolTools] returns it.
	tools []events.ToolSpec
}

// decoded is an announcement of tools.
type decoded struct {
	revision uint64
	value    []byte
	tools    []events.ToolSpec
}

// NewDirectory returns the directory of a bus. log gets warnings about announcements; nil: slog's default.
func NewDirectory(store kv.Store, log *slog.Logger) *Directory {
	if log == nil {
		log = slog.Default()
	}
	return &Directory{store: store, log: log, announced: map[[2]string]uint64{}, said: map[string]bool{}, read: map[string]poolRead{}}
}

// Announce says that an instance runs these tools, all of one pool.
func (d *Directory) Announce(ctx context.Context, pool, instance string, tools []events.ToolSpec) error {
	if err := checkTools(pool, tools); err != nil {
		return err
	}
	body, err := encodeTools(tools)
	if err == nil {
		err = d.announce(ctx, buckets.Tools(pool), kv.Item{Key: keyToken(instance), Value: body})
	}
	if err != nil {
		return fmt.Errorf("announce tools of pool %s: %w", pool, err)
	}
	return nil
}

func checkTools(pool string, tools []events.ToolSpec) error {
	if !events.ValidToken(pool) {
		return fmt.Errorf("announce tools: pool %q is not a token of [a-z0-9][a-z0-9_-]{0,62}", pool)
	}
	for _, t := range tools {
		if t.Pool != pool {
			return fmt.Errorf("announce tools of pool %s: tool %s is of pool %q", pool, t.Name, t.Pool)
		}
		if strings.HasPrefix(t.Name, events.ReservedPrefix) {
			return fmt.Errorf("announce tools of pool %s: tool %s: names that begin with %s are Moorebus' own", pool, t.Name, events.ReservedPrefix)
		}
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

// AnnounceProviders says which model providers an instance reaches, and what it means by names that
// other instances may use too.
func (d *Directory) AnnounceProviders(ctx context.Context, instance string, names []string, all ...journal.Claim) error {
	body, err := json.Marshal(names)
	if err != nil {
		return fmt.Errorf("announce providers: %w", err)
	}
	said, err := json.Marshal(claims{instance, all})
	if err == nil {
		err = d.announce(ctx, buckets.Providers, kv.Item{Key: keyToken(instance), Value: body, Header: map[string]string{claimsHeader: string(said)}})
	}
	if err != nil {
		return fmt.Errorf("announce providers: %w", err)
	}
	return nil
}

// announce stores an announcement and notes what withdraw needs.
func (d *Directory) announce(ctx context.Context, of kv.Bucket, it kv.Item) error {
	revision, err := d.store.Put(ctx, of, it)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.announced[[2]string{of.Name, it.Key}] = revision
	return nil
}

// Withdraw takes back what was announced here for an instance of a pool, as if the announcement had
// expired. What another process has announced since for an instance of that name stays. Without an
// announcement it does nothing.
func (d *Directory) Withdraw(ctx context.Context, pool, instance string) error {
	return d.withdraw(ctx, buckets.Tools(pool), instance)
}

// WithdrawProviders is Withdraw for the providers and claims of an instance.
func (d *Directory) WithdrawProviders(ctx context.Context, instance string) error {
	return d.withdraw(ctx, buckets.Providers, instance)
}

func (d *Directory) withdraw(ctx context.Context, of kv.Bucket, instance string) error {
	key := [2]string{of.Name, keyToken(instance)}
	d.mu.Lock()
	revision, announced := d.announced[key]
	delete(d.announced, key)
	d.mu.Unlock()
	if !announced {
		return nil
	}
	err := d.store.Delete(ctx, of, key[1], revision)
	if err == nil || errors.Is(err, journal.ErrConflict) || errors.Is(err, journal.ErrNotReady) {
		return nil
	}
	return fmt.Errorf("withdraw what %s announced in %s: %w", instance, of.Name, err)
}

// each calls fn with what every live instance announced in a bucket. It logs what it cannot read.
func each[T any](ctx context.Context, d *Directory, of kv.Bucket, fn func(it kv.Item, what T)) error {
	for it, err := range d.store.Each(ctx, of, ">") {
		if err != nil {
			return err
		}
		var what T
		if err := json.Unmarshal(it.Value, &what); err != nil {
			d.unreadable(of, it, err)
			continue
		}
		fn(it, what)
	}
	return nil
}

// readPool reads what the live instances of a pool announce. They repeat the same announcement every few
// seconds, and it may be large, so it is decoded once.
func (d *Directory) readPool(ctx context.Context, pool string) (poolRead, error) {
	of := buckets.Tools(pool)
	d.mu.Lock()
	was := d.read[pool]
	d.mu.Unlock()
	now, same := poolRead{by: make(map[string]decoded, len(was.by))}, true
	for it, err := range d.store.Each(ctx, of, of.Keys) {
		if err != nil {
			return poolRead{}, err
		}
		now.living = true
		known, again := was.by[it.Key]
		if !again || !bytes.Equal(known.value, it.Value) {
			same, known = false, decoded{value: it.Value}
			if err := json.Unmarshal(it.Value, &known.tools); err != nil {
				d.unreadable(of, it, err)
				continue
			}
		}
		known.revision = it.Revision
		now.by[it.Key] = known
	}
	if now.tools = was.tools; !same || len(now.by) != len(was.by) {
		now.tools = merge(pool, now.by)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.read[pool] = now
	return now, nil
}

// merge returns what the instances of a pool announce, each tool once, sorted by name.
func merge(pool string, by map[string]decoded) (all []events.ToolSpec) {
	said := map[string]bool{} // instances of one build say the same
	for _, one := range slices.SortedFunc(maps.Values(by), func(x, y decoded) int { return cmp.Compare(x.revision, y.revision) }) {
		if said[string(one.value)] {
			continue
		}
		said[string(one.value)] = true
		all = slices.Grow(all, len(one.tools))
		for _, t := range one.tools {
			// Who writes to a pool's bucket speaks for that pool alone.
			if t.Pool == pool && !slices.ContainsFunc(all, func(o events.ToolSpec) bool { return o.Name == t.Name && reflect.DeepEqual(o, t) }) {
				all = append(all, t)
			}
		}
	}
	sortTools(all)
	return all
}

func (d *Directory) unreadable(of kv.Bucket, it kv.Item, err error) {
	d.log.Warn("an announcement cannot be read", "bucket", of.Name, "instance", it.Key, "reason", err)
}

// claimsOf returns what an announcement of providers has in its header, which older planners leave out.
func claimsOf(it kv.Item) (c claims, err error) {
	if said := it.Header[claimsHeader]; said != "" {
		err = json.Unmarshal([]byte(said), &c)
	}
	return c, err
}

// Claims returns what every live instance means by its names, sorted by instance.
func (d *Directory) Claims(ctx context.Context) ([]journal.Claim, error) {
	var all []journal.Claim
	err := each(ctx, d, buckets.Providers, func(it kv.Item, _ json.RawMessage) { // claims count whatever JSON the body is
		said, err := claimsOf(it)
		if err != nil {
			d.unreadable(buckets.Providers, it, err)
			return
		}
		for _, claim := range said.Claims {
			claim.Instance, claim.Seq = said.Instance, it.Revision
			all = append(all, claim)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list names: %w", err)
	}
	slices.SortStableFunc(all, func(x, y journal.Claim) int { return cmp.Compare(x.Instance, y.Instance) })
	return all, nil
}

// Tools returns every live tool, sorted by name and pool. A tool that several instances of a pool
// announce equally is there once. Tools that the operator has assigned to another pool are omitted.
func (d *Directory) Tools(ctx context.Context) ([]events.ToolSpec, error) {
	var pools []Pool
	err := d.eachPool(ctx, "tools", func(pool string) error {
		tools, err := d.PoolTools(ctx, pool)
		pools = append(pools, Pool{Tools: tools})
		return err
	})
	if err != nil {
		return nil, err
	}
	return d.ToolsOf(ctx, pools)
}

// ToolsOf is Tools of what Pools has returned.
func (d *Directory) ToolsOf(ctx context.Context, pools []Pool) ([]events.ToolSpec, error) {
	lists := make([][]events.ToolSpec, len(pools))
	for i, pool := range pools {
		lists[i] = pool.Tools
	}
	all := slices.Concat(lists...)
	sortTools(all)
	return d.owned(ctx, all)
}

// PoolTools returns the live tools of one pool, sorted by name. They are shared and must not be changed.
func (d *Directory) PoolTools(ctx context.Context, pool string) ([]events.ToolSpec, error) {
	found, err := d.readPool(ctx, pool)
	if err != nil && !errors.Is(err, journal.ErrNotReady) {
		return nil, fmt.Errorf("list tools of pool %s: %w", pool, err)
	}
	return found.tools, nil
}

func sortTools(all []events.ToolSpec) {
	slices.SortStableFunc(all, func(x, y events.ToolSpec) int {
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Pool, y.Pool), cmp.Compare(x.Description, y.Description))
	})
}

// owned drops the tools that the operator has assigned to other pools than the one that
// announces them, and says so once.
func (d *Directory) owned(ctx context.Context, tools []events.ToolSpec) ([]events.ToolSpec, error) {
	assigned, err := d.store.ToolPools(ctx)
	if err != nil || len(assigned) == 0 {
		return tools, err
	}
	return slices.DeleteFunc(tools, func(t events.ToolSpec) bool {
		pool, listed := assigned[t.Name]
		foreign := listed && pool != t.Pool
		if foreign {
			d.warnOnce("announcement of "+t.Name+" by "+t.Pool,
				"an announcement is ignored: the operator has assigned the tool to another pool", "tool", t.Name, "announced_by", t.Pool, "assigned_to", pool)
		}
		return foreign
	}), nil
}

// warnOnce logs a warning unless it did so before.
func (d *Directory) warnOnce(what, msg string, args ...any) {
	d.mu.Lock()
	first := !d.said[what]
	d.said[what] = true
	d.mu.Unlock()
	if first {
		d.log.Warn(msg, args...)
	}
}

// Providers returns the names of all live providers, sorted.
func (d *Directory) Providers(ctx context.Context) ([]string, error) {
	var all []string
	if err := each(ctx, d, buckets.Providers, func(_ kv.Item, names []string) { all = append(all, names...) }); err != nil {
		return nil, fmt.Errorf("list providers: %w", err)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// eachPool calls fn for every pool of tools that exists, in order. It skips the pools that this user may
// not read, and logs them: they are newer than the user's permissions.
func (d *Directory) eachPool(ctx context.Context, what string, fn func(pool string) error) error {
	names, err := d.store.Names(ctx, buckets.ToolsPrefix)
	if err != nil {
		return fmt.Errorf("list %s: %w", what, err)
	}
	for _, name := range names {
		pool := strings.TrimPrefix(name, buckets.ToolsPrefix)
		err := fn(pool)
		if errors.Is(err, journal.ErrDenied) {
			d.warnOnce("may not read "+pool,
				"the tools of a pool may not be read: give the user permissions that name the pool", "pool", pool, "reason", err)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// Pool is a pool of tools.
type Pool struct {
	Name string
	// Living says that a live instance announced the pool, possibly without tools.
	Living bool
	// Tools are its live tools, sorted by name. They are shared and must not be changed.
	Tools []events.ToolSpec
}

// Pools returns every pool of tools that was ever set up or announced and that this user may read,
// sorted by name.
func (d *Directory) Pools(ctx context.Context) ([]Pool, error) {
	pools := []Pool{}
	err := d.eachPool(ctx, "pools", func(name string) error {
		found, err := d.readPool(ctx, name)
		if err != nil {
			return fmt.Errorf("list pools: pool %s: %w", name, err)
		}
		pools = append(pools, Pool{Name: name, Living: found.living, Tools: found.tools})
		return nil
	})
	return pools, err
}

// Worker is a live instance that announces what it serves: an actor its pool and tools, a
// planner its model providers.
type Worker struct {
	Role      string   `json:"role" jsonschema:"planner or actor."`
	Instance  string   `json:"instance"`
	Pool      string   `json:"pool,omitempty"`
	Tools     []string `json:"tools,omitempty"`
	Providers []string `json:"providers,omitempty"`
}

// Workers returns the live instances, planners first, then sorted by pool and instance.
func (d *Directory) Workers(ctx context.Context) ([]Worker, error) {
	found := map[[2]string]Worker{} // by pool and key
	err := each(ctx, d, buckets.Providers, func(it kv.Item, providers []string) {
		w := Worker{Role: "planner", Instance: it.Key, Providers: providers}
		if said, err := claimsOf(it); err == nil && said.Instance != "" {
			w.Instance = said.Instance // the key may have other characters
		}
		slices.Sort(w.Providers)
		found[[2]string{"", it.Key}] = w
	})
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	err = d.eachPool(ctx, "workers", func(pool string) error {
		announced, err := d.readPool(ctx, pool)
		if err != nil {
			return fmt.Errorf("list workers of pool %s: %w", pool, err)
		}
		for key, said := range announced.by {
			w := Worker{Role: "actor", Instance: key, Pool: pool}
			for _, t := range said.tools {
				if t.Pool == pool {
					w.Tools = append(w.Tools, t.Name)
				}
			}
			slices.Sort(w.Tools)
			found[[2]string{pool, key}] = w
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return slices.SortedFunc(maps.Values(found), func(x, y Worker) int {
		return cmp.Or(cmp.Compare(x.Pool, y.Pool), cmp.Compare(x.Instance, y.Instance))
	}), nil
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
	return cmp.Or(token, "_")
}

// Offers are what gateways remember of announcements. So a later announcement takes no tool
// away, and a tool whose actor is restarting is not unknown. A tool or provider that nobody
// announces any more is remembered for some seconds.
type Offers struct {
	// First has the pool that announced each tool first, by tool.
	First map[string]string `json:"first"`
	// Providers are the names of model providers, sorted.
	Providers []string `json:"providers"`
	// Revision is that of the key, for [Directory.PutOffers].
	Revision uint64 `json:"-"`
}

// Offers returns what was put last, the zero value if nothing was. It is shared and must not be changed.
// Without the bucket, which PutOffers makes, the error is [journal.ErrNotReady].
func (d *Directory) Offers(ctx context.Context) (o Offers, err error) {
	it, err := d.store.Get(ctx, buckets.Offers, buckets.Offers.Keys)
	switch {
	case errors.Is(err, journal.ErrNotFound) && it.Revision == 0:
		return o, nil
	case errors.Is(err, journal.ErrNotFound):
		err = errors.New("it was deleted with another tool") // who announced a name first would be decided anew
	case err == nil:
		o, err = d.decodeOffers(it.Value)
	}
	if err != nil {
		return o, fmt.Errorf("what is remembered of announcements: %w", err)
	}
	o.Revision = it.Revision
	return o, nil
}

// decodeOffers decodes what gateways read every second, and rarely change, once.
func (d *Directory) decodeOffers(body []byte) (o Offers, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if bytes.Equal(body, d.offersBody) { // no body is empty: see [kv.Store.Get]
		return d.offers, nil
	}
	if err = json.Unmarshal(body, &o); err == nil {
		d.offersBody, d.offers = body, o
	}
	return o, err
}

// PutOffers replaces what Offers returned, with its revision, unless somebody else did meanwhile
// ([journal.ErrConflict]).
func (d *Directory) PutOffers(ctx context.Context, o Offers) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if _, err = d.store.Update(ctx, buckets.Offers, kv.Item{Key: buckets.Offers.Keys, Value: body, Revision: o.Revision}); err != nil {
		return fmt.Errorf("remember announcements: %w", err)
	}
	return nil
}
