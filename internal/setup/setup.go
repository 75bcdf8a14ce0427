// Package setup sets up a bus, and writes the permissions of its users.
package setup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/internal/permissions"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Bus sets up a bus and reports the changes.
type Bus struct {
	Init natsbus.InitOptions
	// Storage are the agents whose storage is created, as NAMESPACE/AGENT.
	Storage []string
	storage []entrystore.Owner
	// PoolTools assign tools to pools, each as POOL=TOOL,TOOL.
	PoolTools []string
	// Wait waits until a bus that answers is ready.
	Wait bool
	// Monitor is the URL of the server's monitoring, which reports how much it may store.
	// Empty: port 8222 of the server.
	Monitor string
}

// Check returns a usage error for a wrong setting.
func (s *Bus) Check() error {
	for flag, n := range map[string]int{"shards": s.Init.Shards, "replicas": s.Init.Replicas, "max-ack-pending": s.Init.MaxAckPending} {
		if n < 0 {
			return cli.Usage("--%s: must not be negative, is %d", flag, n)
		}
	}
	if s.Init.AckWait < 0 {
		return cli.Usage("--ack-wait: must not be negative, is %s", s.Init.AckWait)
	}
	storage, err := parseStorage(s.Storage)
	if err != nil {
		return err
	}
	s.storage = storage
	for _, of := range storage {
		s.Init.Buckets = append(s.Init.Buckets, entrystore.Buckets(of)...)
	}
	if err := s.readPoolTools(); err != nil {
		return err
	}
	for pool, n := range s.Init.PoolMaxAckPending {
		if n < 1 || !events.ValidToken(pool) {
			return cli.Usage("--pool-max-ack-pending: %s=%d: give a pool's name and 1 or more", pool, n)
		}
	}
	for _, pool := range s.Init.Pools {
		if !events.ValidToken(pool) {
			return cli.Usage("--pools: %q is not a name; use [a-z0-9][a-z0-9_-]{0,62}", pool)
		}
	}
	return nil
}

// readPoolTools parses --pool-tools. The pools in it are set up too.
func (s *Bus) readPoolTools() error {
	for _, text := range s.PoolTools {
		pool, list, found := strings.Cut(text, "=")
		if !found {
			return cli.Usage("--pool-tools: %q is not POOL=TOOL,TOOL", text)
		}
		tools := []string{}
		if list != "" {
			tools = strings.Split(list, ",")
		}
		if s.Init.PoolTools == nil {
			s.Init.PoolTools = map[string][]string{}
		}
		s.Init.PoolTools[pool] = append(s.Init.PoolTools[pool], tools...)
		s.Init.Pools = append(s.Init.Pools, pool)
	}
	if err := natsbus.CheckPoolTools(s.Init.PoolTools); err != nil {
		return cli.Usage("--pool-tools: %s", err)
	}
	return nil
}

// Run sets up the bus and writes a line for each thing that it created or changed, or one
// line if nothing changed.
func (s *Bus) Run(ctx context.Context, conn *nats.Conn, w io.Writer) error {
	pools := append(slices.Sorted(maps.Keys(s.Init.PoolMaxAckPending)), s.Init.Pools...)
	before := survey(ctx, conn, pools)
	notes, err := s.init(ctx, conn)
	if err != nil {
		return err
	}
	after := survey(ctx, conn, pools)
	var lines []string
	for _, thing := range after {
		if !slices.Contains(before, thing) {
			lines = append(lines, "set up: "+thing)
		}
	}
	if s.Init.MaxBytes > 0 {
		lines = append(lines, fmt.Sprintf("max bytes of every stream of the log: %d", s.Init.MaxBytes))
	}
	if s.Init.MaxAckPending > 0 {
		lines = append(lines, fmt.Sprintf("max ack pending of every consumer: %d", s.Init.MaxAckPending))
	}
	for _, pool := range slices.Sorted(maps.Keys(s.Init.PoolMaxAckPending)) {
		lines = append(lines, fmt.Sprintf("calls of pool %s at once: %d", pool, s.Init.PoolMaxAckPending[pool]))
	}
	for _, pool := range slices.Sorted(maps.Keys(s.Init.PoolTools)) {
		line := "no tools are assigned to pool " + pool
		if tools := s.Init.PoolTools[pool]; len(tools) > 0 {
			line = fmt.Sprintf("assigned to pool %s: %s; what other pools announce under these names is ignored", pool, strings.Join(tools, ", "))
		}
		lines = append(lines, line)
	}
	for _, of := range s.storage {
		lines = append(lines, "storage of "+of.String()+" is there")
	}
	if len(lines) == 0 {
		lines = append(lines, "already as wanted: "+strings.Join(after, "; "))
	}
	_, err = fmt.Fprintln(w, strings.Join(append(lines, notes...), "\n"))
	return err
}

// init calls natsbus.Init, repeatedly if it is to wait, and returns its notes.
func (s *Bus) init(ctx context.Context, conn *nats.Conn) ([]string, error) {
	var notes []string
	said := ""
	err := retry.Policy{First: 250 * time.Millisecond}.Do(ctx, func(ctx context.Context) (err error) {
		if notes, err = s.try(ctx, conn); err != nil && (!s.Wait || !cli.BusAway(err)) {
			return retry.Stop(err)
		}
		return err
	}, func(err error, _ time.Duration) {
		if err.Error() != said {
			said = err.Error()
			slog.Default().Warn("waiting for the bus", "reason", said)
		}
	})
	return notes, err
}

// initTimeout bounds one attempt to set up a bus.
const initTimeout = 2 * time.Minute

func (s *Bus) try(ctx context.Context, conn *nats.Conn) (notes []string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, initTimeout, nats.ErrTimeout)
	defer cancel()
	if err := s.ask(ctx, conn); err != nil {
		return nil, err
	}
	s.Init.Say = func(line string) { notes = append(notes, line) }
	err = natsbus.Init(ctx, conn, s.Init)
	if errors.Is(err, nats.ErrNoResponders) {
		err = fmt.Errorf("JetStream does not answer; start nats-server with -js: %w", err)
	}
	return notes, err
}

// ask sets what the server's monitoring says.
func (s *Bus) ask(ctx context.Context, conn *nats.Conn) error {
	if said, err := natsconn.Monitor(ctx, conn, s.Monitor); err == nil {
		s.Init.Storable, s.Init.Reserved = said.Storable, said.Reserved
		if said.Own {
			s.Init.Sync = natsbus.SyncOf(said.SyncAlways)
		}
	} else if s.Monitor != "" {
		return err
	}
	return nil
}

// surveyTimeout bounds a survey.
const surveyTimeout = 30 * time.Second

// survey lists what exists on the bus, as far as it can see, without what changes by itself.
func survey(ctx context.Context, conn *nats.Conn, pools []string) []string {
	ctx, cancel := context.WithTimeout(ctx, surveyTimeout)
	defer cancel()
	quiet := natsbus.Options{Logger: slog.New(slog.DiscardHandler)}
	var things []string
	for _, f := range natsbus.Check(ctx, conn, quiet) {
		// The number of events or timers in a stream is not a setting.
		what := f.What
		if strings.HasSuffix(what, " events") || strings.HasSuffix(what, " timers") {
			what, _, _ = strings.Cut(what, ":")
		}
		if f.Level == natsbus.Good && (strings.HasPrefix(what, "stream ") || strings.HasPrefix(what, "the log lies on ")) {
			things = append(things, what)
		}
	}
	bus, err := natsbus.Open(ctx, conn, quiet)
	if err != nil {
		return things
	}
	return append(things, ackWaits(ctx, bus, pools)...)
}

// ackWaits lists the ack waits, and so the pools.
func ackWaits(ctx context.Context, bus *natsbus.Bus, pools []string) []string {
	things := []string{}
	if wait, err := bus.AckWait(ctx, journal.Inbox{States: []events.State{events.Planning}}); err == nil {
		things = append(things, "ack wait "+wait.String())
	}
	for _, pool := range append([]string{events.DefaultPool}, pools...) {
		if wait, err := bus.AckWait(ctx, journal.Inbox{States: []events.State{events.Acting}, Pool: pool}); err == nil {
			things = append(things, "pool "+pool+", ack wait "+wait.String())
		}
	}
	slices.Sort(things)
	return slices.Compact(things)
}

func parseStorage(names []string) ([]entrystore.Owner, error) {
	all := make([]entrystore.Owner, 0, len(names))
	for _, name := range names {
		of, err := entrystore.ParseOwner(name)
		if err != nil {
			return nil, cli.Usage("--storage: %v", err)
		}
		all = append(all, of)
	}
	return all, nil
}

// FormatConf is the format of nats-server's configuration.
const FormatConf = "nats-conf"

// Permissions writes the users of a bus and their permissions.
type Permissions struct {
	Pools  []string
	Shards int
	// Storage are the agents whose storage roles may use, as NAMESPACE/AGENT.
	Storage []string
	// Services are the NATS services whose tools actors call, as NAME=SUBJECT,SUBJECT.
	Services []string
	// Observing are the pools whose actors observe, too.
	Observing []string
	// Format is [FormatConf] or json.
	Format string
	// Credentials is the directory of the users' nkeys. Empty: users have passwords.
	Credentials string
}

// WriteTo is [Permissions.Write] into a file, which has the old text or the new one. Without a
// name it writes to w.
func (p *Permissions) WriteTo(name string, w io.Writer) error {
	if name == "" {
		return p.Write(w)
	}
	var text bytes.Buffer
	if err := p.Write(&text); err != nil {
		return err
	}
	if err := os.WriteFile(name+".new", text.Bytes(), 0o644); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// Write creates missing keys and writes the permissions.
func (p *Permissions) Write(w io.Writer) error {
	if p.Format != FormatConf && p.Format != "json" {
		return cli.Usage("--format: %q is not known; use %s or json", p.Format, FormatConf)
	}
	storage, err := parseStorage(p.Storage)
	if err != nil {
		return err
	}
	layout := permissions.Layout{Pools: p.Pools, Shards: p.Shards, Storage: storage, Observing: p.Observing}
	for _, service := range p.Services {
		name, subjects, _ := strings.Cut(service, "=")
		layout.Services = append(layout.Services, permissions.Service{
			Name: name, Subjects: strings.FieldsFunc(subjects, func(r rune) bool { return r == ',' }),
		})
	}
	var keys map[string]string
	if p.Credentials != "" {
		if keys, err = permissions.Keys(p.Credentials, layout); err != nil {
			return err
		}
	}
	c, err := permissions.New(layout, keys)
	if err != nil {
		return err
	}
	c.Command = p.command()
	if p.Format == "json" {
		return c.WriteJSON(w)
	}
	return c.WriteConf(w)
}

// command returns the command that generates this output.
func (p *Permissions) command() string {
	words := []string{"moorebus init --print-permissions"}
	if p.Shards > 1 {
		words = append(words, "--shards "+strconv.Itoa(p.Shards))
	}
	if len(p.Pools) > 0 {
		words = append(words, "--pools "+strings.Join(p.Pools, ","))
	}
	if len(p.Observing) > 0 {
		words = append(words, "--observing-pools "+strings.Join(p.Observing, ","))
	}
	for _, of := range p.Storage {
		words = append(words, "--storage "+of)
	}
	for _, service := range p.Services {
		words = append(words, "--service "+cli.ShellWord(service))
	}
	if p.Credentials != "" {
		words = append(words, "--credentials "+p.Credentials)
	}
	return strings.Join(words, " ")
}
