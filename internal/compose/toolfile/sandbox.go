package toolfile

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/pkg/tool/exectool"
)

// tryTime is how long it may take to find out what a sandbox has.
const tryTime = 10 * time.Second

// box is a kind of sandbox, as far as it decides what of it a system has.
type box struct {
	kind    exectool.Sandbox
	network exectool.Network
}

// sandboxes finds out, once for each kind, what holds the commands of a tool file on this system. It says
// once for all of them what is missing, and who has none.
type sandboxes struct {
	known   map[box][]string
	missing []string
	// unbounded says why there is no bound on memory and processes, free who has no sandbox, and
	// networked who has one with the network of this machine.
	unbounded       string
	free, networked []string
}

// of returns what holds the program of a tool; nil if it has none, or cannot be started.
func (s *sandboxes) of(e *agentfile.ToolEntry) []string {
	if e.Exec == nil {
		return nil
	}
	b := box{cmp.Or(exectool.Sandbox(e.Sandbox), exectool.Strict), exectool.Network(e.Network)}
	if b.kind == exectool.Off || runtime.GOOS != "linux" {
		s.free = append(s.free, e.Name)
		return []string{string(exectool.Off)}
	}
	if b.network == exectool.Host {
		s.networked = append(s.networked, e.Name)
	}
	if held, is := s.known[b]; is {
		return held
	}
	ctx, cancel := context.WithTimeout(context.Background(), tryTime)
	defer cancel()
	is, err := exectool.Try(ctx, b.kind, b.network)
	missing := is.Missing
	if err != nil {
		missing = []string{err.Error()}
	}
	for _, m := range missing {
		if !slices.Contains(s.missing, m) {
			s.missing = append(s.missing, m)
		}
	}
	if s.known == nil {
		s.known = map[box][]string{}
	}
	s.known[b], s.unbounded = is.Held, is.Unbounded
	return is.Held
}

// say logs what tools and their sandboxes lack, each once for all tools.
func (s *sandboxes) say(logger *slog.Logger) {
	if len(s.missing) > 0 {
		logger.Warn("the sandbox of commands lacks something on this system; `require` in the tool file keeps a tool from running without it", "missing", s.missing)
	}
	if s.unbounded != "" {
		logger.Info("memory and processes of commands have no bound here", "reason", s.unbounded)
	}
	if len(s.networked) > 0 {
		logger.Warn("tools with network: host reach every listener of this machine, on loopback too: what listens there without a token (MOOREBUS_TOKEN, NATS_TOKEN) lets them start runs and approve calls", "tools", Some(s.networked))
	}
	if len(s.free) == 0 {
		return
	}
	args := []any{"tools", Some(s.free)}
	for _, name := range []string{"NATS_NKEY", "NATS_CREDS"} {
		if file := os.Getenv(name); file != "" {
			args = append(args, "readable", file, "instead", natsconn.SeedVariable)
		}
	}
	logger.Warn("tools without a sandbox act as the user of this process: they can read its files and keys, and so approve calls", args...)
}

// someOf is how many names [Some] lists.
const someOf = 8

// Some lists the first of some names, and how many more there are.
func Some(names []string) string {
	if more := len(names) - someOf; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:someOf], ", "), more)
	}
	return strings.Join(names, ", ")
}
