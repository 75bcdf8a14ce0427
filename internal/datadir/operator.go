package datadir

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/pkg/embedded"
)

// ofUser begins what a lock file says of a server that takes the token of this user's file; the
// beginning of the token's hash follows.
const ofUser = "user:"

// ServeOperator has a server listen on loopback for this operator's other commands: those that have
// the same NATS_TOKEN or MOOREBUS_TOKEN in their environment if this process has one, else those of
// this user. All others that can read the data directory may watch.
func (s *Serve) ServeOperator(getenv func(string) string) {
	s.Listen = "127.0.0.1:0"
	for _, name := range []string{cli.NATSTokenVariable, cli.TokenVariable} {
		if token := getenv(name); token != "" {
			s.Token, s.TokenFrom = token, name
			return
		}
	}
	token, err := makeOperatorToken(getenv)
	if err != nil {
		// This process works without, and no other one can act on its runs.
		cli.Say("other commands can only watch the runs of this process, unless %s is set for both: %v", cli.NATSTokenVariable, err)
		s.Token, s.TokenFrom = rand.Text(), cli.NATSTokenVariable
		return
	}
	s.Token, s.TokenFrom = token, ofUser+hashOf(token)
}

func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:4])
}

// makeOperatorToken returns this user's token. It makes the file if it is not there.
func makeOperatorToken(getenv func(string) string) (string, error) {
	file, err := cli.OperatorFile(getenv)
	if err != nil {
		return "", err
	}
	if token, err := readOperatorToken(file); !errors.Is(err, fs.ErrNotExist) {
		return token, err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return "", err
	}
	// Linked when it is whole, so that another process never reads a part of it.
	draft, err := os.CreateTemp(filepath.Dir(file), "operator-*")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.Remove(draft.Name()) }()
	_, err = draft.WriteString(rand.Text() + "\n")
	if err := errors.Join(err, draft.Close()); err != nil {
		return "", err
	}
	if err := os.Link(draft.Name(), file); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return readOperatorToken(file)
}

func readOperatorToken(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	if len(token) < 20 {
		return "", fmt.Errorf("%s does not hold a token: remove it, and a new one is made", file)
	}
	return token, nil
}

// JoinToken returns the token with which this process joins the one that holds a data directory,
// and what it would need to do more than watch; empty if it needs nothing more.
func JoinToken(held embedded.Holder, getenv func(string) string) (token, needs string) {
	hash, mine := strings.CutPrefix(held.TokenFrom, ofUser)
	switch {
	case held.TokenFrom == "": // no token is wanted, or an earlier build serves
		return held.Token, ""
	case !onThisMachine(held.URL):
		return held.Token, fmt.Sprintf("run the command on the machine of process %d: its lock file names another one, %s", held.PID, held.URL)
	case held.TokenFrom == cli.NATSTokenVariable, held.TokenFrom == cli.TokenVariable:
		if token := getenv(held.TokenFrom); token != "" {
			return token, ""
		}
		return held.Token, fmt.Sprintf("set %s as process %d has it", held.TokenFrom, held.PID)
	case !mine: // who can write the file could have any variable sent to it
		return held.Token, fmt.Sprintf("use the build of process %d, whose lock file this one does not understand", held.PID)
	}
	if file, err := cli.OperatorFile(getenv); err == nil {
		if token, err := readOperatorToken(file); err == nil && hashOf(token) == hash {
			return token, ""
		}
	}
	return held.Token, fmt.Sprintf("run the command as the user of process %d, with the same HOME and XDG_CONFIG_HOME, or set %s for both", held.PID, cli.NATSTokenVariable)
}

// onThisMachine reports whether a server that a lock file names is one of this machine. Whoever can
// write the file could have tokens sent to another one.
func onThisMachine(at string) bool {
	u, err := url.Parse(at)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	if ip == nil || ip.IsLoopback() {
		return ip != nil
	}
	addresses, err := net.InterfaceAddrs() // it may listen on one of them alone
	return err == nil && slices.ContainsFunc(addresses, func(a net.Addr) bool {
		own, is := a.(*net.IPNet)
		return is && own.IP.Equal(ip)
	})
}

// sayWatching says that this process can only watch.
func sayWatching(needs string) {
	if needs != "" {
		cli.Say("this command can only watch: to change something, %s", needs)
	}
}
