package providerfile

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"
)

const (
	// keyTTL is how long a key is kept by default.
	keyTTL = 5 * time.Minute
	// keyTimeout bounds a run of the command.
	keyTimeout = 30 * time.Second
	// maxOutput bounds the standard output, and maxStderr what an error repeats, in bytes.
	maxOutput, maxStderr = 64 << 10, 500
)

// keyCommand gets API keys that expire from a command, which has the environment of the process. It keeps the
// key that the command printed. It is safe for concurrent use.
type keyCommand struct {
	argv         []string
	ttl, timeout time.Duration

	mu sync.Mutex
	// key is used until the time; run is the run of the command, or nil.
	key   string
	until time.Time
	run   *keyRun
}

// keyRun is one run of the command, whose result is there once done is closed.
type keyRun struct {
	done chan struct{}
	key  string
	err  error
}

// newKeyCommand runs the command, which has at least a name. A ttl of 0 is [keyTTL].
func newKeyCommand(argv []string, ttl time.Duration) *keyCommand {
	return &keyCommand{argv: argv, ttl: cmp.Or(max(ttl, 0), keyTTL), timeout: keyTimeout}
}

// get returns the key that is kept, or runs the command. It does not return the refused
// key again unless the command prints it again. Concurrent calls share one run, which a
// call that ends does not end.
func (s *keyCommand) get(ctx context.Context, refused string) (string, error) {
	s.mu.Lock()
	if s.key != "" && s.key != refused && time.Now().Before(s.until) {
		defer s.mu.Unlock()
		return s.key, nil
	}
	if s.run == nil {
		s.run = &keyRun{done: make(chan struct{})}
		go s.renew(s.run)
	}
	r := s.run
	s.mu.Unlock()
	select {
	case <-r.done:
		return r.key, r.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (s *keyCommand) renew(r *keyRun) {
	begun := time.Now()
	r.key, r.err = s.execute()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.key, s.until, s.run = r.key, begun.Add(s.ttl), nil
	close(r.done)
}

// execute runs the command without a shell. Errors name only the command: its arguments
// may hold secrets.
func (s *keyCommand) execute() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	stdout, stderr := &limited{most: maxOutput, full: cancel}, &limited{most: maxStderr}
	cmd := exec.CommandContext(ctx, s.argv[0], s.argv[1:]...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.WaitDelay = time.Second // for children that keep its output open
	err := cmd.Run()
	key := strings.TrimSpace(stdout.kept.String())
	var why string
	switch {
	case stdout.over:
		why = fmt.Sprintf("printed more than %d bytes; it has to print the key alone", maxOutput)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		why = fmt.Sprintf("did not end within %v", s.timeout)
	case err != nil:
		why = "failed: " + err.Error()
	case key == "":
		why = "printed no key"
	case strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }):
		why = "printed a key with a newline, a space or another character that no key has; it has to print the key alone"
	default:
		return key, nil
	}
	if said := s.said(stderr.kept.String(), key); said != "" {
		why += ": " + said
	}
	return "", fmt.Errorf("the api_key_command %s %s", s.argv[0], why)
}

// said is what the command wrote to stderr, without its arguments and its output.
func (s *keyCommand) said(text, key string) string {
	for _, secret := range append(strings.Fields(key), s.argv[1:]...) {
		if len(secret) >= 8 {
			text = strings.ReplaceAll(text, secret, "[secret]")
		}
	}
	return strings.ToValidUTF8(strings.TrimSpace(text), "\uFFFD")
}

// limited keeps the beginning of what is written, and calls full at the first byte too many.
// It embeds no buffer: [bytes.Buffer.ReadFrom] would go past Write, and so past the bound.
type limited struct {
	kept bytes.Buffer
	most int
	over bool
	full func()
}

// Write never fails.
func (l *limited) Write(data []byte) (int, error) {
	keep := min(len(data), l.most-l.kept.Len())
	l.kept.Write(data[:keep])
	if keep < len(data) {
		l.over = true
		if l.full != nil {
			l.full()
		}
	}
	return len(data), nil
}
