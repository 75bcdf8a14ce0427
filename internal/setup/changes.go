package setup

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/print"
)

// changes is what setting up a bus would change.
type changes struct {
	Changes []natsbus.Change `json:"changes"`
	// Notes say what could not be done as is wanted.
	Notes []string `json:"notes,omitempty"`
	// Permissions says what to do for users with permissions.
	Permissions string `json:"permissions,omitempty"`
}

const permissionsHint = "if roles have their own users: print the permissions for all pools and storage again (moorebus init --print-permissions), and have the servers reload them before roles use what is new"

// Changes writes what [Bus.Run] would change, as text or JSON, and changes nothing. If there is something,
// the error has the code [cli.ExitChanges] and no message.
func (s *Bus) Changes(ctx context.Context, conn *nats.Conn, w io.Writer, f print.Format) error {
	ctx, cancel := context.WithTimeoutCause(ctx, initTimeout, nats.ErrTimeout)
	defer cancel()
	if err := s.ask(ctx, conn); err != nil {
		return err
	}
	p := changes{Changes: []natsbus.Change{}}
	s.Init.Say = func(line string) { p.Notes = append(p.Notes, line) }
	found, err := natsbus.Plan(ctx, conn, s.Init)
	if err != nil {
		return err
	}
	for _, c := range found {
		if p.Changes = append(p.Changes, c); c.Action == "create" {
			p.Permissions = permissionsHint
		}
	}
	if f == print.JSON {
		err = print.Write(w, f, p)
	} else {
		_, err = io.WriteString(w, p.text())
	}
	if err == nil && len(p.Changes) > 0 {
		err = &cli.ExitError{Code: cli.ExitChanges}
	}
	return err
}

func (p *changes) text() string {
	var b strings.Builder
	for _, c := range p.Changes {
		fmt.Fprintf(&b, "would %s %s", c.Action, c.Thing)
		if len(c.Settings) > 0 {
			b.WriteString(": " + strings.Join(c.Settings, "; "))
		}
		b.WriteByte('\n')
	}
	if len(p.Changes) == 0 {
		b.WriteString("nothing to do\n")
	}
	for _, line := range append(p.Notes, p.Permissions) {
		if line != "" {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}
