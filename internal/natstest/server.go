// Package natstest runs nats-server in its own processes. In the process of a test,
// the race detector makes a server so slow that elections and requests run out of time.
// For tests only.
package natstest

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/freeport"
	"github.com/nats-io/nuid"
)

// patience bounds every start and stop.
const patience = time.Minute

var build = sync.OnceValues(func() (string, error) {
	dir, err := commandtest.Build("cmd", "github.com/nats-io/nats-server/v2")
	return filepath.Join(dir, "nats-server"), err
})

// Options are settings in the syntax of the server's configuration file.
type Options struct {
	// JetStream is added to the settings of JetStream, More to those of the server.
	JetStream, More string
}

// Server is a nats-server process with JetStream, on the loopback.
type Server struct {
	// Name is unique.
	Name string
	// URL is where clients connect, Monitor where the monitoring answers.
	URL, Monitor string
	// Dir is the store's directory.
	Dir string

	tb        testing.TB
	conf, log string
	cmd       *exec.Cmd
	ended     <-chan struct{}
}

// Start starts a server, and returns when it takes connections. It is killed at the
// end of the test, which shows the server's log if it failed.
func Start(tb testing.TB, o Options) *Server {
	tb.Helper()
	addresses, err := freeport.Addresses(2)
	require(tb, err)
	s := newServer(tb, o, addresses[0], addresses[1])
	s.Start()
	return s
}

// Cluster starts three servers that replicate, and returns when each takes connections.
// They may have no leader yet. The i-th server's settings are options(i).
func Cluster(tb testing.TB, options func(i int) Options) []*Server {
	tb.Helper()
	addresses, err := freeport.Addresses(9)
	require(tb, err)
	all := make([]*Server, 3)
	for i := range all {
		o := options(i)
		o.More += fmt.Sprintf("\ncluster { name: c, listen: %q, routes: [\"nats://%s\"] }", addresses[i], strings.Join(addresses[:3], `", "nats://`))
		all[i] = newServer(tb, o, addresses[3+i], addresses[6+i])
	}
	StartAll(all)
	return all
}

// StartAll starts servers that are stopped, all at once.
func StartAll(all []*Server) {
	for _, s := range all {
		s.launch()
	}
	for _, s := range all {
		if !s.ready() {
			s.tb.Fatalf("%s does not start", s.Name)
		}
	}
}

// newServer writes the server's configuration.
func newServer(tb testing.TB, o Options, address, monitor string) *Server {
	tb.Helper()
	dir := tb.TempDir()
	s := &Server{
		Name: nuid.Next(), URL: "nats://" + address, Monitor: "http://" + monitor, Dir: filepath.Join(dir, "store"),
		tb: tb, conf: filepath.Join(dir, "conf"), log: filepath.Join(dir, "log"),
	}
	text := fmt.Sprintf("server_name: %s\nlisten: %q\nhttp: %q\njetstream { store_dir: %q\n%s\n}\n%s\n", s.Name, address, monitor, s.Dir, o.JetStream, o.More)
	require(tb, os.WriteFile(s.conf, []byte(text), 0o600))
	tb.Cleanup(func() {
		s.Kill()
		if tb.Failed() {
			tb.Logf("nats-server %s:\n%s", s.Name, s.said())
		}
	})
	return s
}

func (s *Server) launch() {
	s.tb.Helper()
	command, err := build()
	require(s.tb, err)
	s.cmd = exec.Command(command, "-c", s.conf, "-l", s.log)
	s.ended, err = commandtest.Start(s.cmd)
	require(s.tb, err)
}

// ready waits until the server takes connections, and reports false if it ended.
func (s *Server) ready() bool {
	for enough := time.Now().Add(patience); time.Now().Before(enough); {
		if s.greets() {
			return true
		}
		select {
		case <-s.ended:
			return false
		case <-time.After(5 * time.Millisecond):
		}
	}
	return false
}

// greets reports whether this server, and no other one, answers at its address.
func (s *Server) greets() bool {
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "nats://"))
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	line, _ := bufio.NewReader(conn).ReadString('\n') // an error leaves it without the name
	return strings.Contains(line, s.Name)
}

// said is the server's log so far.
func (s *Server) said() string {
	text, _ := os.ReadFile(s.log) // there is none before it says something
	return string(text)
}

// Start starts the server again, on the same address with the same store.
func (s *Server) Start() {
	s.tb.Helper()
	StartAll([]*Server{s})
}

// Stop has the server end in order.
func (s *Server) Stop() {
	s.tb.Helper()
	require(s.tb, s.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-s.ended:
	case <-time.After(patience):
		s.tb.Fatalf("%s does not stop", s.Name)
	}
}

// Pause has the server hang, with its connections open, until Resume.
func (s *Server) Pause() {
	s.tb.Helper()
	require(s.tb, s.cmd.Process.Signal(syscall.SIGSTOP))
}

// Resume lets a server that hangs continue.
func (s *Server) Resume() {
	s.tb.Helper()
	require(s.tb, s.cmd.Process.Signal(syscall.SIGCONT))
}

// Kill ends the server as a power cut would. It may have ended already.
func (s *Server) Kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
}

func require(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
