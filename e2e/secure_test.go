package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSecureServer: the server of one machine makes its certificates and keys, has the users of
// deploy/nats, and flushes for them in groups. It is killed while a run waits, and the roles carry on.
func TestSecureServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	require.NoError(t, os.RemoveAll(filepath.Join(s.dir, "tls")))
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "tools.yaml"), []byte(guardedTools), 0o600))
	start := s.block("moorebus server --data data")
	start[0] += " --nats-listen 127.0.0.1:" + s.port["4222"]
	server, _ := s.do(start)
	s.awaitLog(server[0], "the server is up: NATS_URL=tls://127.0.0.1:"+s.port["4222"])
	roles, _ := s.do(s.block("gateway.nk"))
	a := newAPI(t, "http://127.0.0.1:"+s.port["8080"])
	a.awaitReady()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var run struct {
		ID string `json:"run_id"`
	}
	require.NoError(t, a.persist(ctx, "POST", "/v1/runs", map[string]any{"agent": guardedAgent, "task": "Pay."}, &run))
	s.awaitState(ctx, a, run.ID, "waiting_for_human")
	require.Contains(t, s.shell("NATS_NKEY=keys/operator.nk moorebus doctor"), "is on the disk up to record", "the directory is on ext4, so it flushes in groups")
	s.refusedToTap()

	// A renewed certificate is used for new connections, without a restart.
	require.Contains(t, s.shell("NATS_NKEY=keys/operator.nk moorebus doctor"), "the certificate of the server ends on ")
	before := s.shell("NATS_NKEY=keys/operator.nk moorebus doctor | grep 'certificate of the server'")
	s.shell("moorebus certs tls --renew --days 20")
	require.Eventually(t, func() bool {
		now := s.shell("NATS_NKEY=keys/operator.nk moorebus doctor | grep -A1 'certificate of the server'")
		return now != before && strings.Contains(now, "moorebus certs --renew")
	}, time.Minute, 500*time.Millisecond)

	server[0].kill()
	server, _ = s.do(start)
	s.awaitLog(server[0], "the server is up")
	require.NoError(t, a.persist(ctx, "POST", "/v1/runs/"+run.ID+"/decisions", map[string]any{"call_id": "pay", "decision": "approved", "by": "ann"}, nil))
	s.awaitState(ctx, a, run.ID, "done")
	s.shell("NATS_NKEY=keys/tap.nk NATS_INBOX_PREFIX=_INBOX_tap replay verify --all")
	require.Contains(t, s.shell("NATS_NKEY=keys/operator.nk moorebus init --check --pools web"), "nothing to do")
	terminateAll(t, roles)
	for _, role := range roles {
		require.NotContains(t, role.log.String(), "violation", "%s may do what it does", role.name)
	}

	// The same directory without users is refused, and so is a wrong number of shards.
	terminateAll(t, server)
	s.refuses("moorebus server --data data --nats-listen 127.0.0.1:0", "are those of a server with users")
	s.refuses(start[0]+" --host other.example", "is not for other.example")
}

// refuses runs a command that has to fail and say why.
func (s *site) refuses(line, why string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	out, err := s.command(ctx, "exec env "+line).CombinedOutput()
	require.Error(s.t, err, line)
	require.Contains(s.t, string(out), why)
}

// awaitLog waits until a process has said something.
func (s *site) awaitLog(p *process, said string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return strings.Contains(p.log.String(), said) }, startTime, 10*time.Millisecond, "%s: %s", said, lazy(func() string { return p.log.String() }))
}
