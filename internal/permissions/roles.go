// Package permissions generates the part of nats-server's configuration that gives each role
// exactly the permissions that it needs.
//
// What a role may append follows from the transition table: the edges out of the states that it serves.
// Package natsbus knows what every other use of the bus needs. So neither is defined twice.
//
// There are four accounts. LOG has the streams, the buckets and the operator. ROLES, TOOLS and
// READERS have the other users and import what these use. The reason is that a server sends
// answers to any reply subject without checking permissions. In the log's own account, any user
// could store a copy of any message on any edge. In that of the actors, any user could have a
// stored message delivered to a service as a call.
package permissions

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/feature/rows"
	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool/servicetool"
)

// The names of users. The name of an actor is [ActorPrefix] and its pool, that of a NATS service
// [ServicePrefix] and its name.
const (
	Operator      = "operator"
	Planner       = "planner"
	Observer      = "observer"
	Gateway       = "gateway"
	Tap           = "tap"
	Telemetry     = "telemetry"
	Backup        = "backup"
	ActorPrefix   = "actor_"
	ServicePrefix = "service_"
)

// owned are the states out of which each role publishes.
var owned = map[string][]events.State{
	Planner:     {events.Planning, events.Reflecting},
	ActorPrefix: {events.Acting, events.ParallelActing},
	Observer:    {events.Observing, events.Paging},
	Gateway:     {events.Idle, events.WaitingForUser, events.WaitingForHuman, events.Control},
}

// User is a user of the bus with its permissions.
type User struct {
	Name string `json:"name"`
	// Account is the name of its account.
	Account string `json:"account"`
	// NKey is the public key. Empty: the user has a password.
	NKey string `json:"nkey,omitempty"`
	// InboxPrefix is the prefix of its inboxes, with which it must connect.
	InboxPrefix string   `json:"inbox_prefix"`
	Publish     []string `json:"publish"`
	Subscribe   []string `json:"subscribe"`
}

// Layout is the installation that the permissions are for.
type Layout struct {
	// Shards is the number of streams of the log; 0: 1.
	Shards int
	// Pools are the pools of tools; `default` is always among them.
	Pools []string
	// Observing are the pools whose actors observe, too. They have the permissions of both roles.
	Observing []string
	// Storage are the agents whose storage actors and the observer may use.
	Storage []entrystore.Owner
	// Services are the NATS services whose tools actors call.
	Services []Service
	// Table is the transition table; nil: the built-in one.
	Table *reducer.Table
}

// Service is a NATS service, and the subjects of its endpoints, which may have wildcards.
type Service struct {
	Name     string
	Subjects []string
}

// serviceName is what NATS allows, within the length of a user's name.
var serviceName = regexp.MustCompile("^[a-zA-Z0-9_-]{1,64}$")

func (s Service) check() error {
	if !serviceName.MatchString(s.Name) {
		return fmt.Errorf("service %q is not a name of [a-zA-Z0-9_-]", s.Name)
	}
	if len(s.Subjects) == 0 {
		return fmt.Errorf("service %s: name the subjects of its endpoints, as in %s=%s.>", s.Name, s.Name, s.Name)
	}
	for _, subject := range s.Subjects {
		switch {
		case servicetool.Reserved(subject):
			return fmt.Errorf("service %s: the subject %q belongs to Moorebus or to the server, or covers such subjects", s.Name, subject)
		case strings.ContainsAny(subject, " \t\r\n\"") || slices.Contains(strings.Split(subject, "."), ""):
			return fmt.Errorf("service %s: %q is not a subject", s.Name, subject)
		}
	}
	return nil
}

// withDefaults returns the layout with its defaults, or what is wrong with it.
func (l Layout) withDefaults() (Layout, error) {
	if l.Shards < 0 {
		return l, fmt.Errorf("shards: must not be negative, is %d", l.Shards)
	}
	l.Shards = max(1, l.Shards)
	l.Pools = append([]string{events.DefaultPool}, l.Pools...)
	slices.Sort(l.Pools)
	l.Pools = slices.Compact(l.Pools)
	for _, pool := range l.Pools {
		if !events.ValidToken(pool) {
			return l, fmt.Errorf("pool %q is not a name of [a-z0-9][a-z0-9_-]{0,62}", pool)
		}
		if pool == events.ClientPool {
			return l, fmt.Errorf("pool %q is reserved for the tools of runs' clients: it has no actor", pool)
		}
	}
	for _, pool := range l.Observing {
		if !slices.Contains(l.Pools, pool) {
			return l, fmt.Errorf("observing pools: there is no pool %q; the pools are %s", pool, strings.Join(l.Pools, ", "))
		}
	}
	for _, of := range l.Storage {
		if err := of.Check(); err != nil {
			return l, err
		}
	}
	for i, s := range l.Services {
		if err := s.check(); err != nil {
			return l, err
		}
		if slices.ContainsFunc(l.Services[:i], func(o Service) bool { return o.Name == s.Name }) {
			return l, fmt.Errorf("service %s is named twice", s.Name)
		}
	}
	if l.Table == nil {
		l.Table = reducer.DefaultTable()
	}
	return l, nil
}

// Users returns all users but the operator: planner, observer, gateway, backup, tap, telemetry, an actor for each
// pool, a user for each NATS service, and [Custom] if the table has its own states.
func Users(l Layout) ([]User, error) {
	l, err := l.withDefaults()
	if err != nil {
		return nil, err
	}
	users := []User{l.user(Planner, l.planner), l.user(Observer, l.observer), l.user(Gateway, l.gateway)}
	for _, pool := range l.Pools {
		users = append(users, l.user(ActorPrefix+pool, func(g *natsbus.Grants) { l.actor(g, pool) }))
	}
	for _, s := range l.Services {
		users = append(users, s.user())
	}
	users = append(users, l.user(Backup, (*natsbus.Grants).ReadAll), l.user(Tap, l.tap), l.user(Telemetry, telemetry))
	return append(users, l.custom()...), nil
}

// user returns the user of a service, which may do nothing else.
func (s Service) user() User {
	g := natsbus.NewGrants(1)
	u := User{Name: ServicePrefix + s.Name, Account: Tools, InboxPrefix: inboxOf(ServicePrefix + s.Name)}
	g.Inbox(u.InboxPrefix)
	g.Serve(s.Name, s.Subjects)
	u.Publish, u.Subscribe = g.Publish(), g.Subscribe()
	return u
}

// RolesOf returns the roles out of whose states a user may publish, sorted. A user should have one
// role, or be an actor that observes.
func RolesOf(may func(subject string) bool) []string {
	var roles []string
	for role, states := range owned {
		if slices.ContainsFunc(states, func(s events.State) bool {
			return may("moore.0."+events.DefaultNamespace+"."+string(s)+"."+string(events.Nobody)+"."+events.DefaultPool+".x") ||
				may("moore.0."+events.DefaultNamespace+"."+string(s)+"."+string(events.Errored)+"."+events.DefaultPool+".x")
		}) {
			roles = append(roles, strings.TrimSuffix(role, "_"))
		}
	}
	slices.Sort(roles)
	return roles
}

func inboxOf(user string) string { return "_INBOX_" + user }

func (l Layout) user(name string, grant func(*natsbus.Grants)) User {
	prefix := inboxOf(name)
	g := natsbus.NewGrants(l.Shards)
	g.Inbox(prefix)
	g.WhoIs()
	g.ReadLog()
	g.ReadSnapshots()
	grant(g)
	return User{Name: name, Account: accountOf(name), InboxPrefix: prefix, Publish: g.Publish(), Subscribe: g.Subscribe()}
}

// worker grants what the worker loop needs for a role's states: its edges and control events. pool
// limits the edges of tools; empty: all pools.
func (l Layout) worker(g *natsbus.Grants, states []events.State, pool string) {
	g.Watch(journal.Filter{From: events.Control})
	for _, e := range reducer.Edges(l.Table) {
		if !slices.Contains(states, e.From) {
			continue
		}
		if e.To == events.Nobody && e.Pool == events.AgentsPool && pool != events.AgentsPool {
			continue // only the actor of the pool of agents hands a run over
		}
		if e.Pool == events.Wildcard && pool != "" {
			e.Pool = pool
		}
		g.Append(e.From, e.To, e.Pool)
	}
}

func inbox(pool string, states ...events.State) journal.Inbox {
	return journal.Inbox{States: states, Pool: pool}
}

func (l Layout) planner(g *natsbus.Grants) {
	l.worker(g, owned[Planner], "")
	g.Consume(inbox(events.DefaultPool, owned[Planner]...))
	g.UseBucket(buckets.Providers)
	g.StoreResults(events.DefaultPool) // reasoning that is too large for the log
	g.PublishChunks()
	g.WatchAsks()
	for _, pool := range l.Pools {
		g.ReadResults(pool) // images for the model
	}
	// To learn whether another planner has a resumed run's call in flight.
	g.Ask()
	g.WatchChunks()
	g.Answer() // replies of client models
	g.SetTimer(ports.TimerModel)
}

func (l Layout) actor(g *natsbus.Grants, pool string) {
	l.worker(g, owned[ActorPrefix], pool)
	g.Consume(inbox(pool, owned[ActorPrefix]...))
	g.UseBucket(buckets.Tools(pool))
	g.Lend(pool)
	g.StoreResults(pool)
	if slices.Contains(l.Observing, pool) {
		l.observer(g)
	}
	if pool == events.AgentsPool {
		l.subagents(g) // it runs no tools, so it needs no storage
		return
	}
	for _, of := range l.Storage {
		useStorage(g, of, entrystore.Actor)
	}
	if len(l.Services) > 0 {
		g.CallServices(inboxOf(ActorPrefix + pool))
	}
	for _, s := range l.Services {
		g.CallService(s.Name, s.Subjects)
	}
}

// subagents grants what the actor of the pool of agents needs besides: it starts runs, as the
// gateway does, and consumes their ends.
func (l Layout) subagents(g *natsbus.Grants) {
	g.Append(l.Table.Initial(), events.Planning, events.DefaultPool)
	g.Consume(inbox(events.AgentsPool, l.ends()...))
	l.readDirectory(g)
	g.ReadBucket(buckets.Agents)
	g.ReadBucket(buckets.Purged)
	g.SetTimers()
}

func (l Layout) ends() []events.State {
	return slices.DeleteFunc(l.Table.States(), func(s events.State) bool { return !l.Table.Terminal(s) })
}

func (l Layout) observer(g *natsbus.Grants) {
	l.worker(g, owned[Observer], "")
	g.Consume(inbox(events.DefaultPool, owned[Observer]...))
	g.StoreSnapshots()
	for _, of := range l.Storage {
		useStorage(g, of, entrystore.Observer)
	}
	for _, state := range l.Table.States() {
		if l.Table.Terminal(state) || state == events.WaitingForUser {
			g.Watch(journal.Filter{To: state}) // to take snapshots, and to remove those of ended runs
		}
	}
}

// readDirectory allows to read which tools there are, which providers, and what is remembered of both.
func (l Layout) readDirectory(g *natsbus.Grants) {
	g.ListBuckets()
	g.ReadBucket(buckets.Offers)
	g.ReadBucket(buckets.Providers)
	for _, pool := range l.Pools {
		g.ReadBucket(buckets.Tools(pool))
	}
}

// gateway may also consume the deliveries of all pools, to answer the calls of unserved ones.
func (l Layout) gateway(g *natsbus.Grants) {
	l.worker(g, owned[Gateway], "")
	g.Consume(inbox(events.DefaultPool, events.WaitingForHuman))
	g.Consume(inbox(events.ClientPool, owned[ActorPrefix]...)) // the tools of runs' clients
	for _, pool := range l.Pools {
		g.Consume(inbox(pool, owned[ActorPrefix]...))
		g.ReadResults(pool) // to check references in messages
		if pool == events.AgentsPool {
			g.Inspect(inbox(pool, l.ends()...)) // to find runs that wait for a sub-run whose end was lost
		}
	}
	g.Ready()
	g.Inspect(inbox(events.DefaultPool, l.own()...)) // to tell how much work waits
	g.Watch(journal.Filter{})
	g.WatchChunks()
	g.Ask()
	g.Question()
	g.PublishChunks() // what client models are writing
	g.WatchAsks()
	l.readDirectory(g)
	g.UseBucket(buckets.Offers)
	g.UseBucket(buckets.Agents)
	g.StoreResults(events.DefaultPool) // images and files of messages
	g.ReadBucket(buckets.Purged)
	g.UseBucket(buckets.Threads)
	g.UseBucket(buckets.Notes)
	g.UseLease(ports.RoleKey{Role: Gateway, Name: "threads"}) // to forget those that have ended
	for _, f := range rows.All() {
		for _, bucket := range f.Buckets {
			g.UseBucket(bucket)
		}
		for _, lease := range f.Leases {
			g.UseLease(ports.RoleKey{Role: Gateway, Name: lease})
		}
		if f.Alarms {
			g.Alarms()
		}
	}
	g.ListKeys(buckets.Dropped)
	g.WriteKeys(buckets.Dropped, buckets.Dropped.Keys)
	g.Timers()
	g.UseLease(ports.RoleKey{Role: Gateway, Name: "timers"}) // to notice that somebody removed them
	for _, of := range l.Storage {                           // people edit it, what was paged out too
		useStorage(g, of, entrystore.Actor)
		useStorage(g, of, entrystore.Observer)
	}
}

// tap may read everything about runs, but no messages between roles.
func (l Layout) tap(g *natsbus.Grants) {
	g.WatchAll()
	g.Ask()
	g.ReadBucket(buckets.Purged)
	g.ListKeys(buckets.Dropped)
	for _, pool := range l.Pools {
		g.ReadResults(pool)
	}
}

// telemetry reads the log, and keeps where it is.
func telemetry(g *natsbus.Grants) {
	g.Watch(journal.Filter{})
	g.UseLease(ports.RoleKey{Role: Telemetry, Name: "traces"})
}

// Custom is the name of the user that serves the states of an application's own graph.
const Custom = "custom"

// custom returns that user, if the table has such states.
func (l Layout) custom() []User {
	own := l.own()
	if len(own) == 0 {
		return nil
	}
	return []User{l.user(Custom, func(g *natsbus.Grants) {
		l.worker(g, own, "")
		g.Consume(inbox(events.DefaultPool, own...))
	})}
}

// own returns the states of an application's own graph in which something is done.
func (l Layout) own() []events.State {
	builtIn := reducer.DefaultTable().States()
	return slices.DeleteFunc(l.Table.States(), func(s events.State) bool { return l.Table.Terminal(s) || slices.Contains(builtIn, s) })
}

// useStorage allows to read the storage of an agent, and to write to it as the writer.
func useStorage(g *natsbus.Grants, of entrystore.Owner, by entrystore.Writer) {
	for _, bucket := range entrystore.Buckets(of) {
		g.ReadBucket(bucket)
	}
	g.WriteKeys(entrystore.Bucket(of, by), ">")
}
