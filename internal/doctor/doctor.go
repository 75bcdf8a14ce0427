// Package doctor checks an installation: the bus or the data directory, the roles, the model
// providers, listeners, and the sandbox of exec tools. Each finding says what to do. The checks
// change nothing and show no key.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/certs"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/compose/toolfile"
	"github.com/moorebus/moorebus/internal/datadir"
	"github.com/moorebus/moorebus/internal/diskspace"
	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/internal/permissions"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/internal/runstart"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/tool/exectool"
	"github.com/nats-io/nats.go"
)

// The areas of a [Report].
const (
	AreaBus   = "bus"
	AreaHTTP  = "http"
	AreaData  = "data"
	AreaKeys  = "keys"
	AreaRoles = "roles"
	AreaTools = "tools"
)

// Found is a finding and its area.
type Found struct {
	Area string `json:"area"`
	natsbus.Finding
}

// Report are the findings of [Checks].
type Report struct {
	Findings []Found `json:"findings"`
	Bad      int     `json:"bad"`
	Warnings int     `json:"warnings"`
}

// Add adds the findings of an area.
func (r *Report) Add(area string, findings ...natsbus.Finding) {
	for _, f := range findings {
		switch f.Level {
		case natsbus.Bad:
			r.Bad++
		case natsbus.Warning:
			r.Warnings++
		}
		r.Findings = append(r.Findings, Found{area, f})
	}
}

// Write writes the report as JSON, or as lines with what to do below each.
func (r *Report) Write(w io.Writer, f print.Format, color bool) error {
	if f != print.Text {
		return print.Write(w, f, r)
	}
	p := print.Palette{On: color}
	paint := map[natsbus.Level]func(string) string{natsbus.Good: p.Green, natsbus.Unseen: p.Faint, natsbus.Warning: p.Yellow, natsbus.Bad: p.Red}
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s  %-5s  %s\n", paint[f.Level](print.Pad(string(f.Level), 7)), f.Area, print.Plain(f.What))
		for line := range strings.Lines(f.Mend) {
			b.WriteString(strings.Repeat(" ", 16) + strings.TrimRight(line, "\n") + "\n")
		}
	}
	switch {
	case r.Bad == 0 && r.Warnings == 0:
		b.WriteString("all is well\n")
	default:
		fmt.Fprintf(&b, "%d bad, %d to check\n", r.Bad, r.Warnings)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func finding(level natsbus.Level, mend, format string, args ...any) natsbus.Finding {
	return natsbus.Finding{Level: level, What: fmt.Sprintf(format, args...), Mend: mend}
}

// lookTimeout bounds the checks of one bus.
const lookTimeout = 30 * time.Second

// Checks are the checks of an installation.
type Checks struct {
	// Getenv is os.Getenv.
	Getenv func(string) string
	// Client asks the model provider; nil: one that waits 3 s.
	Client *http.Client
	// Bus are the options with which the bus is opened.
	Bus natsbus.Options
}

// Remote checks a named bus and the roles on it.
func (d *Checks) Remote(ctx context.Context, o natsconn.ConnectOptions, r *Report) {
	d.remote(ctx, o, r, func(conn *nats.Conn, f []natsbus.Finding) []natsbus.Finding {
		return append(f, d.user(ctx, conn)...)
	})
}

// user checks whether the user may do more than it needs.
func (d *Checks) user(ctx context.Context, conn *nats.Conn) []natsbus.Finding {
	id, err := natsconn.WhoIs(ctx, conn, d.Bus.RequestTimeout, d.Bus.Logger)
	if err != nil {
		return []natsbus.Finding{finding(natsbus.Unseen, natsbus.AskOthers, "%v", err)}
	}
	found := []natsbus.Finding{natsbus.CheckUser(id)}
	if roles := permissions.RolesOf(id.MayPublish); id.Limited() && len(roles) > 1 && !slices.Equal(roles, []string{"actor", "observer"}) {
		found = append(found, finding(natsbus.Warning, "give each role its own user, see `moorebus init --print-permissions`",
			"this user may publish the events of several roles: %s", strings.Join(roles, ", ")))
	}
	return found
}

// reading turns the findings of a connection into those that are reported.
type reading func(*nats.Conn, []natsbus.Finding) []natsbus.Finding

func (d *Checks) remote(ctx context.Context, o natsconn.ConnectOptions, r *Report, read reading) {
	conn, err := natsconn.Connect(ctx, o)
	if err != nil {
		r.Add(AreaBus, finding(natsbus.Bad, "start nats-server with JetStream (-js), or set NATS_URL or --nats, and NATS_CA and NATS_NKEY if it asks for a user", "%v", err))
		return
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	r.Add(AreaBus, certificates(certs.EndsOf(conn.TLSConnectionState))...)
	r.Add(AreaBus, read(conn, natsbus.Check(ctx, conn, d.Bus))...)
	bus, err := natsbus.Open(ctx, conn, d.Bus)
	if err != nil {
		return // the check has said why
	}
	r.Add(AreaBus, storages(ctx, bus)...)
	r.Add(AreaRoles, Roles(ctx, announce.NewDirectory(bus, nil))...)
}

// storages names the agents that have storage. A user who may not list buckets sees none.
func storages(ctx context.Context, bus *natsbus.Bus) (found []natsbus.Finding) {
	all, _ := entrystore.New(bus).Owners(ctx)
	for _, of := range all {
		found = append(found, finding(natsbus.Good, "", "storage of %s", of))
	}
	return found
}

// soonEnds is how long before its end a certificate is to be renewed.
const soonEnds = 30 * 24 * time.Hour

// certificates reports until when the certificates of a bus are valid.
func certificates(ends map[string]time.Time) (found []natsbus.Finding) {
	for _, name := range slices.Sorted(maps.Keys(ends)) {
		left := time.Until(ends[name])
		level, mend := natsbus.Good, ""
		if left < soonEnds {
			level, mend = natsbus.Warning, "renew it where its files are: `moorebus certs --renew`"
		}
		found = append(found, finding(level, mend, "the certificate of the %s ends on %s, in %d days", name, ends[name].UTC().Format(time.DateOnly), int(left.Hours()/24)))
	}
	return found
}

// Roles reports which tools and model providers are announced.
func Roles(ctx context.Context, directory *announce.Directory) []natsbus.Finding {
	return append(freeTools(ctx, directory), liveTools(ctx, directory), liveProviders(ctx, directory))
}

// freeTools reports the announced tools without a sandbox, and those whose sandbox has no network of its
// own, in a finding each.
func freeTools(ctx context.Context, directory *announce.Directory) (found []natsbus.Finding) {
	tools, err := directory.Tools(ctx)
	if err != nil {
		return nil // liveTools says why
	}
	var free, networked []string
	for _, t := range tools {
		switch name := t.Pool + "/" + t.Name; {
		case slices.Contains(t.Sandbox, string(exectool.Off)):
			free = append(free, name)
		case len(t.Sandbox) > 0 && !slices.Contains(t.Sandbox, "netns"):
			networked = append(networked, name)
		}
	}
	if len(free) > 0 {
		found = append(found, finding(natsbus.Warning, "run their actor as a separate user, with its key in "+natsconn.SeedVariable+"; docs/how-to/commands-as-tools.md lists what that user can do",
			"these tools have no sandbox and act as the user of their actor: %s", toolfile.Some(free)))
	}
	if len(networked) > 0 {
		found = append(found, finding(natsbus.Warning, "set MOOREBUS_TOKEN and NATS_TOKEN for what listens on their machine, or run their actor on another one",
			"these tools share the network of their actor's machine (network: host, or a system without namespaces) and may reach every listener there, on loopback too: %s", toolfile.Some(networked)))
	}
	return found
}

func liveTools(ctx context.Context, directory *announce.Directory) natsbus.Finding {
	tools, err := directory.Tools(ctx)
	switch {
	case errors.Is(err, journal.ErrDenied):
		return finding(natsbus.Unseen, natsbus.AskOthers, "which tools there are: %v", err)
	case err != nil:
		return finding(natsbus.Bad, "run moorebus init, then the doctor again", "tools cannot be listed: %v", err)
	case len(tools) == 0:
		return finding(natsbus.Warning, "start `actor --tools FILE` or `moorebus dev`", "no actor announces tools: no tool can be called")
	}
	pools := map[string]int{}
	differs := ""
	for i, t := range tools {
		pools[t.Pool]++
		switch {
		case i == 0 || tools[i-1].Name != t.Name || runstart.SameTool(tools[i-1], t):
		case tools[i-1].Pool == t.Pool:
			differs = fmt.Sprintf("actors of the pool %s announce the tool %s differently", t.Pool, t.Name)
		default:
			return finding(natsbus.Bad, "rename one of them, or make them equal",
				"tool %s is announced with different definitions (pools %s and %s); agents that use it cannot start", t.Name, tools[i-1].Pool, t.Pool)
		}
	}
	if differs != "" {
		return finding(natsbus.Warning, "start all actors of the pool with one build and one tool file",
			"%s; runs pin the highest risk and the strictest class, and cannot start with two approvals", differs)
	}
	parts := make([]string, 0, len(pools))
	for pool, n := range pools {
		parts = append(parts, fmt.Sprintf("%s %d", pool, n))
	}
	slices.Sort(parts)
	return finding(natsbus.Good, "", "tools by pool: %s", strings.Join(parts, ", "))
}

func liveProviders(ctx context.Context, directory *announce.Directory) natsbus.Finding {
	providers, err := directory.Providers(ctx)
	switch {
	case errors.Is(err, journal.ErrDenied):
		return finding(natsbus.Unseen, natsbus.AskOthers, "which model providers there are: %v", err)
	case err != nil:
		return finding(natsbus.Bad, "run moorebus init, then the doctor again", "model providers cannot be listed: %v", err)
	case len(providers) == 0:
		return finding(natsbus.Warning, "start `planner` or `moorebus dev`", "no planner announces a model provider: no run continues")
	}
	return finding(natsbus.Good, "", "model providers: %s", strings.Join(providers, ", "))
}

// The amounts of free disk space, in bytes, below which the doctor warns.
const (
	littleSpace = 1 << 30
	noSpace     = 64 << 20
)

// Embedded checks a data directory, and whether this machine can run the embedded server: on
// the directory, or on a temporary one if it does not exist.
func (d *Checks) Embedded(ctx context.Context, dir string, r *Report) {
	r.Add(AreaData, space(dir)...)
	_, err := os.Stat(dir)
	if errors.Is(err, os.ErrNotExist) {
		r.Add(AreaData, finding(natsbus.Good, "", "data directory %s does not exist yet: the first `moorebus run` creates it", dir))
		d.trial(ctx, r)
		return
	}
	if err != nil {
		r.Add(AreaData, finding(natsbus.Bad, "make it readable, or name another one with --data", "data directory: %v", err))
		return
	}
	held, err := embedded.Lookup(dir)
	switch {
	case err != nil:
		r.Add(AreaData, finding(natsbus.Bad, "make it writable for this user, or name another one with --data", "data directory %s: %v", dir, err))
	case held != nil && held.URL != "":
		r.Add(AreaData, finding(natsbus.Good, "", "data directory %s is served by process %d at %s; name the directory with --data, which finds the token of that address", dir, held.PID, held.URL))
		if held.Open {
			r.Add(AreaBus, finding(natsbus.Warning, "set NATS_TOKEN where it is started, or --nats-listen on 127.0.0.1",
				"other machines reach the NATS server of process %d without credentials, so they can run tools and read every run", held.PID))
		}
		if strings.HasPrefix(held.URL, "tls://") {
			r.Add(AreaBus, finding(natsbus.Unseen, "set NATS_URL="+held.URL+", NATS_CA and NATS_NKEY, and run the doctor again", "the server asks for a user"))
			return
		}
		token, needs := datadir.JoinToken(*held, os.Getenv)
		if needs != "" {
			r.Add(AreaBus, finding(natsbus.Warning, needs, "this command may only watch the server of process %d", held.PID))
		}
		connect := natsconn.ConnectOptions{URL: held.URL, Token: token, Name: "moorebus/doctor", Logger: d.Bus.Logger}
		d.remote(ctx, connect, r, func(_ *nats.Conn, f []natsbus.Finding) []natsbus.Finding { return flushed(f) })
	case held != nil:
		r.Add(AreaData, finding(natsbus.Warning, "run the doctor again after it has ended", "data directory %s is in use by process %d, which does not listen", dir, held.PID))
	default:
		r.Add(AreaData, finding(natsbus.Good, "", "data directory %s is free", dir))
		d.serve(ctx, dir, false, r)
	}
}

// space checks the file system of a directory, which need not exist.
func space(dir string) []natsbus.Finding {
	for {
		if _, err := os.Stat(dir); err == nil || filepath.Dir(dir) == dir {
			break
		}
		dir = filepath.Dir(dir)
	}
	free, _, known := diskspace.Free(dir)
	mend := "free some space, or name a directory on another disk with --data"
	switch {
	case !known:
		return nil
	case free < noSpace:
		return []natsbus.Finding{finding(natsbus.Bad, mend, "only %d MiB are free for %s", free>>20, dir)}
	case free < littleSpace:
		return []natsbus.Finding{finding(natsbus.Warning, mend, "only %d MiB are free for %s", free>>20, dir)}
	}
	return []natsbus.Finding{finding(natsbus.Good, "", "%d GiB are free for %s", free>>30, dir)}
}

// trial runs the server on a temporary directory.
func (d *Checks) trial(ctx context.Context, r *Report) {
	dir, err := os.MkdirTemp("", "moorebus-doctor-")
	if err != nil {
		r.Add(AreaBus, finding(natsbus.Bad, "set TMPDIR to a directory that can be written", "%v", err))
		return
	}
	defer func() { _ = os.RemoveAll(dir) }() // best effort: it is a temporary directory
	d.serve(ctx, dir, true, r)
}

// serve starts the server on a directory and checks it.
func (d *Checks) serve(ctx context.Context, dir string, setUp bool, r *Report) {
	findings, err := d.embedded(ctx, dir, setUp)
	if err != nil {
		r.Add(AreaBus, finding(natsbus.Bad, "name a bus with NATS_URL, or another directory with --data", "%v", err))
		return
	}
	r.Add(AreaBus, findings...)
}

func (d *Checks) embedded(ctx context.Context, dir string, setUp bool) ([]natsbus.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	server, err := embedded.Start(ctx, embedded.Options{Dir: dir, GroupFlush: true, SyncAlways: true, Logger: d.Bus.Logger})
	if err != nil {
		return nil, err
	}
	defer server.Shutdown()
	conn, err := server.Connect(nats.Name("moorebus/doctor"))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if setUp {
		if err := natsbus.Init(ctx, conn, natsbus.InitOptions{Storable: server.Storable()}); err != nil {
			return nil, err
		}
	}
	o := d.Bus
	o.Flush = server.Flush
	found := embeddedFindings(natsbus.Check(ctx, conn, o))
	if bus, err := natsbus.Open(ctx, conn, o); err == nil { // else the check has said why
		found = append(found, storages(ctx, bus)...)
	}
	return found, nil
}

// oneServer is how the warning about a log on one server begins. The embedded server flushes
// every message, so the warning is not for it.
const oneServer = "the log lies on one server"

// embeddedFindings adapts findings to a server inside this process, which the next `moorebus
// run` sets up.
func embeddedFindings(findings []natsbus.Finding) []natsbus.Finding {
	for i, f := range findings {
		switch {
		case f.Level == natsbus.Good && strings.HasPrefix(f.What, "nats-server "):
			// The connection is inside the process, so the address means nothing.
			what, _, _ := strings.Cut(f.What, " at ")
			findings[i] = finding(natsbus.Good, "", "embedded %s starts", what)
		case f.Level == natsbus.Bad && strings.Contains(f.Mend, "moorebus init"):
			findings[i] = finding(natsbus.Warning, "nothing: the next `moorebus run` or `moorebus dev` sets it up", "%s", f.What)
		}
	}
	return flushed(findings)
}

// flushed corrects findings about flushing: the embedded server does not report it.
func flushed(findings []natsbus.Finding) []natsbus.Finding {
	for i, f := range findings {
		if f.Level == natsbus.Warning && strings.HasPrefix(f.What, oneServer) {
			findings[i] = finding(natsbus.Good, "", "the log is on this machine; it is flushed before anything is acknowledged, except with --fsync=relaxed")
		}
	}
	return findings
}

// Listener checks MOOREBUS_LISTEN, if it is set.
func (d *Checks) Listener(r *Report) {
	address := d.Getenv("MOOREBUS_LISTEN")
	if address == "" || d.Getenv(cli.TokenVariable) != "" || d.Getenv(cli.ClientCAVariable) != "" {
		return
	}
	at, err := net.ResolveTCPAddr("tcp", address)
	switch {
	case err != nil:
		r.Add(AreaHTTP, finding(natsbus.Bad, "use HOST:PORT", "MOOREBUS_LISTEN: %v", err))
	case !at.IP.IsLoopback():
		r.Add(AreaHTTP, finding(natsbus.Bad, "set MOOREBUS_TOKEN or MOOREBUS_CLIENT_CA, or listen on 127.0.0.1",
			"MOOREBUS_LISTEN=%s without MOOREBUS_TOKEN: gateway and dev refuse to start, and with --insecure-no-auth everybody who reaches it can start runs", address))
	}
}

// Sandbox checks the sandbox of exec tools on this machine.
func (d *Checks) Sandbox(ctx context.Context, r *Report) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	is, err := exectool.Try(ctx, exectool.Strict, exectool.None)
	mend := "run the actor as a separate user, or in a container; docs/how-to/commands-as-tools.md describes the sandbox"
	switch {
	case err != nil:
		r.Add(AreaTools, finding(natsbus.Warning, "fix that, or set sandbox: off for the tools of the file", "%v", err))
	case len(is.Missing) > 0:
		r.Add(AreaTools, finding(natsbus.Warning, mend, "the sandbox of exec tools is incomplete on this machine: it has %s; missing: %s", strings.Join(is.Held, ", "), strings.Join(is.Missing, ", ")))
	default:
		r.Add(AreaTools, finding(natsbus.Good, "", "exec tools run in a sandbox: %s", strings.Join(is.Held, ", ")))
	}
	if is.Unbounded != "" {
		r.Add(AreaTools, finding(natsbus.Good, "", "memory and processes of exec tools have no bound when the actor is started as this command: %s", is.Unbounded))
	}
}

// Keys checks the model providers that the environment configures. It asks each for its list
// of models, which is free, and Ollama for what the model can do.
func (d *Checks) Keys(ctx context.Context, r *Report) {
	named := 0
	for _, v := range providers.All() {
		if v.Configured(d.Getenv) {
			named++
			r.Add(AreaKeys, d.provider(ctx, v, d.Getenv(v.KeyVar), d.Getenv(v.URLVar))...)
		}
	}
	if named == 0 {
		r.Add(AreaKeys, finding(natsbus.Warning, providers.NoKey(),
			"none of %s is set here: only scripted models work", providers.Variables()))
	}
}
