package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/retry"
)

// lockName is the file in the data directory that its holder keeps locked.
const lockName = "moorebus.lock"

// errBusy says that another open file holds the lock.
var errBusy = errors.New("locked by another process")

// Holder says who uses a data directory.
type Holder struct {
	// PID is the holder's process, 0 if it is just starting.
	PID int `json:"pid"`
	// Started is when it took the directory.
	Started time.Time `json:"started"`
	// Starting says that its server is not up yet, and may still be going to listen.
	Starting bool `json:"starting,omitempty"`
	// URL is where its server listens, empty if it does not.
	URL string `json:"url,omitempty"`
	// Token lets a process watch, and change nothing; empty if its server wants no token. In the
	// file of an earlier build, which has no TokenFrom, it lets a process do everything.
	Token string `json:"token,omitempty"`
	// TokenFrom says where the operator's processes find the token that lets them do everything,
	// as [Options] has it.
	TokenFrom string `json:"token_from,omitempty"`
	// Open says that other machines reach its server, and need no token.
	Open bool `json:"open,omitempty"`
}

// HeldError says that another process uses the data directory.
type HeldError struct {
	// Dir is the data directory.
	Dir string
	// Holder is the process that has it.
	Holder
}

// Error names the holder and says what can be done.
func (e *HeldError) Error() string {
	who := "another process"
	if e.PID != 0 {
		who = fmt.Sprintf("process %d, since %s", e.PID, e.Started.Format(time.RFC3339))
	}
	mend := "stop it or use another data directory"
	if e.URL != "" {
		mend = "join it at " + e.URL + ", stop it, or use another data directory"
	}
	return fmt.Sprintf("data directory %s is in use by %s: %s", e.Dir, who, mend)
}

// lock is the locked file of a directory.
type lock struct {
	mu   sync.Mutex
	file *os.File
	who  Holder
}

// acquire takes the directory's lock and writes this process into it. [Lookup]
// holds the lock for a moment while it looks, so a refusal is not final at once.
func acquire(ctx context.Context, dir string) (*lock, error) {
	path := filepath.Join(dir, lockName)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock file: %w", err)
	}
	err = retryBusy(ctx, func() error { return lockFile(file, true) })
	if errors.Is(err, errBusy) {
		err = &HeldError{Dir: dir, Holder: readHolder(file)}
	} else if err != nil {
		err = fmt.Errorf("lock %s: %w", path, err)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	held := &lock{file: file, who: Holder{PID: os.Getpid(), Started: time.Now().UTC(), Starting: true}}
	if err := held.write(); err != nil {
		return nil, errors.Join(err, held.release())
	}
	return held, nil
}

func retryBusy(ctx context.Context, try func() error) error {
	return retry.Policy{Attempts: 10, First: 10 * time.Millisecond}.Do(ctx, func(context.Context) error {
		err := try()
		if !errors.Is(err, errBusy) {
			return retry.Stop(err)
		}
		return err
	}, nil)
}

// announce adds where the server is reached, and whether by other machines.
func (l *lock) announce(url, token, from string, beyond bool) error {
	l.who.Starting = false
	if url != "" {
		l.who.URL, l.who.Token, l.who.TokenFrom, l.who.Open = url, token, from, beyond && token == ""
	}
	return l.write()
}

// write replaces the content in place: the lock is on this very file, so it
// cannot be renamed over.
func (l *lock) write() error {
	body, err := json.Marshal(l.who)
	if err != nil {
		return fmt.Errorf("lock file: %w", err)
	}
	if err := l.file.Chmod(0o600); err != nil {
		return fmt.Errorf("lock file: %w", err)
	}
	if err := l.file.Truncate(0); err != nil {
		return fmt.Errorf("lock file: %w", err)
	}
	if _, err := l.file.WriteAt(append(body, '\n'), 0); err != nil {
		return fmt.Errorf("lock file: %w", err)
	}
	return nil
}

// release empties the file and gives the lock up with it. The file stays: to
// remove it would let two processes lock two files of the same name.
func (l *lock) release() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	err := errors.Join(l.file.Truncate(0), l.file.Close())
	l.file = nil
	return err
}

// readHolder reads who holds the lock. A holder that is just writing leaves it
// unreadable for an instant; then the zero Holder is the answer.
func readHolder(file *os.File) Holder {
	var who Holder
	body, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<16))
	if err != nil || json.Unmarshal(body, &who) != nil {
		return Holder{}
	}
	return who
}

// Lookup returns the process that uses the data directory now, or nil if there
// is none or no such directory. What a dead process left in the lock file does
// not count.
func Lookup(dir string) (*Holder, error) {
	file, err := os.Open(filepath.Join(dir, lockName)) // the directory may be read-only
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lock file: %w", err)
	}
	defer func() { _ = file.Close() }()
	err = lockFile(file, false)
	if errors.Is(err, errBusy) {
		who := readHolder(file)
		return &who, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lock file: %w", err)
	}
	return nil, nil
}
