package powerloss

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/moorebus/moorebus/internal/codec"
)

// checker holds images to what was seen before the power was lost.
type checker struct {
	// moorebus and replay are the commands, fsync the mode of the server.
	moorebus, replay, fsync string
	patience                time.Duration
}

// patience is the default of [Options].Patience: deliveries that were in flight come again
// after 15 s, and an approval's time is 20 s.
const patience = 2 * time.Minute

// maxProblems is how many problems of an image are named.
const maxProblems = 10

// check returns what is wrong with the image that lies in dir/data. With goOn it also
// has the unfinished runs carried on. The error is one of the check itself.
func (c *checker) check(ctx context.Context, dir string, seen []mark, goOn bool) (problems []string, err error) {
	data := filepath.Join(dir, "data")
	if goOn {
		problems = c.carryOn(ctx, dir, seen)
	}
	out := filepath.Join(dir, "log.jsonl")
	text, err := c.run(ctx, "export", "--all", "--data", data, "-f", out)
	if err != nil && bytes.Contains(text, []byte("holds no runs")) && !goOn {
		// The power was lost before the bus was set up, or it was lost. The server does that.
		problems = c.carryOn(ctx, dir, nil)
		text, err = c.run(ctx, "export", "--all", "--data", data, "-f", out)
	}
	if err != nil {
		return append(problems, fmt.Sprintf("the log cannot be read: %v\n%s", err, text)), ctx.Err()
	}
	if text, err := c.run(ctx, "verify", "--all", "--strict", "--data", data); err != nil {
		problems = append(problems, fmt.Sprintf("replay verify: %v\n%s", err, text))
	}
	log, err := readLog(out)
	if err != nil {
		return nil, err
	}
	for _, m := range seen {
		if what := log.lacks(m); what != "" && !slices.Contains(problems, what) {
			problems = append(problems, what)
		}
	}
	return problems, ctx.Err()
}

// run runs the replay command.
func (c *checker) run(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.replay, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.TempDir(), "TMPDIR=" + os.TempDir()}
	// A command that hangs says where.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) }
	cmd.WaitDelay = 10 * time.Second
	text, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("replay %s does not end within %s: %w", args[0], c.patience, err)
	}
	return text, err
}

// imageLog is the log that an image has.
type imageLog struct {
	hashes map[string][]string
	// called and started are the calls of tools, as `run/call`.
	called, started map[string]bool
}

// readLog reads what replay export wrote.
func readLog(path string) (*imageLog, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	l := &imageLog{hashes: map[string][]string{}, called: map[string]bool{}, started: map[string]bool{}}
	lines := bufio.NewReaderSize(file, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return l, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		var record struct {
			Body json.RawMessage `json:"body"`
		}
		if err := json.Unmarshal(line, &record); err != nil {
			return nil, err
		}
		l.add(record.Body)
	}
}

// add takes in one event. Whether it is a legal one is for replay verify to say.
func (l *imageLog) add(body []byte) {
	var e event
	if json.Unmarshal(body, &e) != nil {
		return
	}
	l.hashes[e.Run] = append(l.hashes[e.Run], hash(body))
	for _, call := range e.Data.Calls {
		l.called[e.Run+"/"+call.ID] = true
	}
	if e.Type == "ToolCallStarted" {
		l.started[e.Run+"/"+e.Data.CallID] = true
	}
}

// lacks says what of a mark is not in the log, or "".
func (l *imageLog) lacks(m mark) string {
	have := l.hashes[m.Run]
	switch {
	case m.Tool == toolOnce && !l.started[m.Call]:
		return fmt.Sprintf("call %s of %s was carried out, and the log has no ToolCallStarted of it", m.Call, m.Tool)
	case m.Tool != "" && !l.called[m.Call]:
		return fmt.Sprintf("call %s of %s was carried out, and the log does not have the call", m.Call, m.Tool)
	case m.Run == "":
	case uint64(len(have)) < m.N:
		return fmt.Sprintf("event %d of run %s was acknowledged, and the log has %d of the run", m.N, m.Run, len(have))
	case m.Hash != "" && have[m.N-1] != m.Hash:
		return fmt.Sprintf("event %d of run %s was acknowledged as %.12s, and the log has %.12s", m.N, m.Run, m.Hash, have[m.N-1])
	}
	return ""
}

// carryOn starts the server on the image, and returns what is wrong when its runs
// should have ended.
func (c *checker) carryOn(ctx context.Context, dir string, seen []mark) (problems []string) {
	done := map[string]bool{}
	for _, m := range seen {
		if m.Tool == toolOnce {
			done[m.Call] = true
		}
	}
	var mu sync.Mutex
	world := httptest.NewServer(effects(func(call, tool string) {
		mu.Lock()
		defer mu.Unlock()
		if tool == toolOnce && done[call] {
			problems = append(problems, fmt.Sprintf("call %s of %s was carried out a second time", call, tool))
		}
		done[call] = true
	}))
	defer world.Close()
	tools := filepath.Join(dir, "tools.json")
	if err := os.WriteFile(tools, toolFile(world.URL), 0o600); err != nil {
		return []string{err.Error()}
	}
	s, err := startServer(ctx, c.moorebus, filepath.Join(dir, "data"), c.fsync, tools, filepath.Join(dir, "moorebus.log"))
	if err != nil {
		return []string{"the server does not start: " + err.Error()}
	}
	err = c.awaitEnds(ctx, s.url)
	for _, m := range seen {
		if m.Agent != "" && err == nil {
			err = request(ctx, http.DefaultClient, http.MethodGet, s.url+"/v1/agents/"+m.Agent, "", nil)
		}
	}
	err = errors.Join(err, s.stop(false))
	mu.Lock()
	defer mu.Unlock()
	if err != nil {
		problems = append(problems, err.Error())
	}
	return problems
}

// awaitEnds waits until every run has ended as it should, or waits for its user.
func (c *checker) awaitEnds(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		var open []string
		var all struct {
			Runs []struct {
				RunID string `json:"run_id"`
				State string `json:"state"`
			} `json:"runs"`
		}
		if err := request(ctx, http.DefaultClient, http.MethodGet, url+"/v1/runs?limit=1000", "", &all); err != nil {
			return err
		}
		for _, r := range all.Runs {
			switch r.State {
			case "done", "waiting_for_user":
			case "error", "cancelled":
				return fmt.Errorf("run %s ended in %s", r.RunID, r.State)
			default:
				open = append(open, r.RunID+" is "+r.State)
			}
		}
		if len(open) == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d runs do not go on: %s", len(open), strings.Join(open[:min(len(open), 5)], ", "))
		}
	}
}

// parseMarks reads lines of marks.
func parseMarks(lines [][]byte) ([]mark, error) {
	marks := make([]mark, len(lines))
	for i, line := range lines {
		if err := codec.Strict(line, &marks[i]); err != nil {
			return nil, fmt.Errorf("mark %q: %w", line, err)
		}
	}
	return marks, nil
}
