// Package cli is what the commands have in common, so that a main only wires: how a
// process ends ([Main], [ExitError]), how it finds the bus ([BusFlags], [Open]), how it
// logs ([LogFlags]) and how a role is named ([RoleFlags]).
//
// A command's data goes to stdout, everything else to stderr. Flags take precedence over
// the environment, and the environment over defaults. The exit codes are the same for all
// commands and are defined here only.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/buildinfo"
	"github.com/moorebus/moorebus/internal/conceal"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/pkg/journal"
)

// The exit codes of all commands. A process that a signal ended exits with 128
// plus the signal's number: 130 after Ctrl-C, 143 after SIGTERM.
const (
	ExitOK      = 0
	ExitFailure = 1
	// ExitUsage is for flags and arguments that make no sense.
	ExitUsage = 2
	// ExitDiverged is for a log that is not valid.
	ExitDiverged = 3
	// ExitRunError and ExitRunCancelled say how the run ended.
	ExitRunError     = 4
	ExitRunCancelled = 5
	// ExitIncomplete is for a run that is done, and whose answer was truncated.
	ExitIncomplete = 6
	// ExitChanges is for a check that found something to change.
	ExitChanges = 7
	// ExitBusAway is for a bus that does not answer or is not set up: a retry may help.
	ExitBusAway = 75
	// ExitConfig is for settings that are missing or wrong.
	ExitConfig = 78
)

// ExitError is an error with its own exit code. Without Err the process prints nothing, since
// everything was printed already.
type ExitError struct {
	Code int
	Err  error
}

// Error returns the message of Err.
func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns Err.
func (e *ExitError) Unwrap() error { return e.Err }

// Usage returns an error that ends the process with [ExitUsage].
func Usage(format string, args ...any) error {
	return &ExitError{Code: ExitUsage, Err: fmt.Errorf(format, args...)}
}

// NotConfigured returns an error that ends the process with [ExitConfig].
func NotConfigured(format string, args ...any) error {
	return &ExitError{Code: ExitConfig, Err: fmt.Errorf(format, args...)}
}

// BadConfig gives an error the exit code for wrong settings; nil stays nil.
func BadConfig(err error) error {
	if err == nil {
		return nil
	}
	return NotConfigured("%w", err)
}

// SignalError is the cause of a context that a signal ended.
type SignalError struct{ Signal syscall.Signal }

// Error names the signal.
func (e *SignalError) Error() string { return "ended by signal: " + e.Signal.String() }

// collectorHeadroom is memory that no process touches. So it takes none of the machine's, but the
// garbage collector counts it as used, and lets as much more garbage collect before it works: a
// process whose own memory is small then spends less of its time on that.
const collectorHeadroom = 32 << 20

// Main runs the program's commands on its arguments and exits with the code of the
// outcome. The commands' context ends at the first SIGINT or SIGTERM, with a
// [*SignalError] as its cause; the second one kills. A run that returns nil after a signal
// stopped as asked and exits 0. A run that returns the context's error exits with the
// signal's code. Any other error is written to stderr.
func Main(root *cobra.Command) {
	if err := conceal.Process(); err != nil { // the environment may hold keys and tokens, of any command
		say(terminal.Stderr, slog.LevelError, filepath.Base(os.Args[0])+": ", err.Error())
		os.Exit(1)
	}
	headroom := make([]byte, collectorHeadroom)
	root.SetOut(terminal.Stdout)
	root.SetErr(terminal.Stderr)
	AddVersion(root)
	code := mainCode(terminal.Stderr, func(ctx context.Context) error { return Execute(ctx, root) })
	terminal.Stdout.Flush()
	terminal.Stderr.Flush()
	runtime.KeepAlive(headroom)
	os.Exit(code)
}

func mainCode(stderr io.Writer, run func(ctx context.Context) error) int {
	ctx, stop := untilSignal(context.Background())
	defer stop()
	err := run(ctx)
	code := exitCode(ctx, err)
	if message := failure(ctx, err); message != "" {
		say(stderr, slog.LevelError, filepath.Base(os.Args[0])+": ", message)
	}
	return code
}

// untilSignal returns a context that ends at the first signal. Later signals have their
// usual effect.
func untilSignal(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals)
			number, _ := s.(syscall.Signal)
			cancel(&SignalError{number})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// signalled returns the signal that ended the context, if err follows from that.
func signalled(ctx context.Context, err error) (syscall.Signal, bool) {
	var cause *SignalError
	if !errors.As(context.Cause(ctx), &cause) {
		return 0, false
	}
	var own *SignalError
	return cause.Signal, errors.Is(err, context.Canceled) || errors.As(err, &own)
}

func exitCode(ctx context.Context, err error) int {
	if err == nil {
		return ExitOK
	}
	if s, ok := signalled(ctx, err); ok {
		return 128 + int(s)
	}
	var exit *ExitError
	var taken *journal.NameTakenError
	switch {
	case errors.As(err, &exit):
		return exit.Code
	case errors.As(err, &taken), refusal.Is(err, refusal.CodeUnknownProvider):
		return ExitConfig
	case BusAway(err):
		return ExitBusAway
	}
	return ExitFailure
}

// failure returns what stderr says about an error; empty if everything was printed.
func failure(ctx context.Context, err error) string {
	if err == nil {
		return ""
	}
	if s, ok := signalled(ctx, err); ok {
		return "ended by signal: " + s.String()
	}
	var exit *ExitError
	if errors.As(err, &exit) && exit.Err == nil {
		return ""
	}
	return err.Error()
}

// Interrupted returns the error that ends the process with the code of the signal that
// ended ctx, without a message; nil if no signal did.
func Interrupted(ctx context.Context) error {
	var cause *SignalError
	if !errors.As(context.Cause(ctx), &cause) {
		return nil
	}
	return &ExitError{Code: 128 + int(cause.Signal)}
}

// ShellWord returns text as one word of a shell's command.
func ShellWord(text string) string {
	special := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("_-./:=@,+", r)
	}
	if text != "" && !strings.ContainsFunc(text, special) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// BusAway reports whether the bus does not answer or is not set up, so that a retry may
// succeed.
func BusAway(err error) bool {
	for _, away := range [...]error{
		journal.ErrNotReady, nats.ErrNoServers, nats.ErrTimeout, nats.ErrNoResponders, nats.ErrDisconnected,
		nats.ErrConnectionClosed, nats.ErrConnectionReconnecting, nats.ErrReconnectBufExceeded, nats.ErrInvalidConnection,
	} {
		if errors.Is(err, away) {
			return true
		}
	}
	if refusal.Is(err, refusal.CodeUnavailable) {
		return true // a gateway says so
	}
	var network *net.OpError
	var name *net.DNSError
	return errors.As(err, &network) || errors.As(err, &name)
}

// outage is how long a command that can be repeated outlasts that the bus is away: longer than the
// streams of a cluster need for other leaders.
const outage = time.Minute

// Outlast repeats what stores nothing twice while the bus is away, and says so in a note.
func Outlast(ctx context.Context, notef func(format string, args ...any), try func(context.Context) error) error {
	return retry.Policy{First: time.Second, Budget: outage}.Do(ctx, func(ctx context.Context) error {
		err := try(ctx)
		if err != nil && !BusAway(err) && !errors.Is(err, journal.ErrUnknownOutcome) {
			return retry.Stop(err)
		}
		return err
	}, func(err error, _ time.Duration) { notef("the bus is away, it is tried again: %v", err) })
}

// Execute runs a tree of commands on the process's arguments. Whatever goes
// wrong before a command's own RunE (unknown commands, flags and arguments) is a
// usage error; errors are returned and not printed, see [Main].
func Execute(ctx context.Context, root *cobra.Command) error {
	started := false
	root.SilenceUsage, root.SilenceErrors = true, true
	each(root, func(c *cobra.Command) {
		if run := c.RunE; run != nil {
			c.RunE = func(c *cobra.Command, args []string) error {
				started = true
				return run(c, args)
			}
		}
	})
	called, err := root.ExecuteContextC(ctx)
	var exit *ExitError
	switch {
	case err == nil, started:
		return err
	case errors.Is(err, errVersion):
		return nil
	case errors.As(err, &exit):
		return exit // without what the library says of it
	}
	return &ExitError{Code: ExitUsage, Err: fmt.Errorf("%w; see `%s --help`", err, called.CommandPath())}
}

func each(c *cobra.Command, fn func(*cobra.Command)) {
	fn(c)
	for _, sub := range c.Commands() {
		each(sub, fn)
	}
}

// errVersion is what parsing flags ends with after --version was printed.
var errVersion = errors.New("the version is printed")

// AddVersion adds --version to a program and each of its commands, and the command version.
// It does without [cobra.Command.Version], whose text needs a template: a program with
// text/template in it keeps every exported method, which makes the observer a fifth larger.
func AddVersion(root *cobra.Command) {
	addVersionCommand(root)
	each(root, func(c *cobra.Command) {
		c.Flags().BoolFunc("version", "print version, commit, table and schemas, as "+root.Name()+" version does", func(value string) error {
			if on, err := strconv.ParseBool(value); err != nil || !on {
				return err
			}
			if _, err := fmt.Fprint(c.OutOrStdout(), buildinfo.Read().Text(root.Name())); err != nil {
				return err
			}
			return errVersion
		})
	})
}

// addVersionCommand adds the command version to a program. Such a program may have no other
// commands; then its arguments are still its own.
func addVersionCommand(root *cobra.Command) {
	var format string
	cmd := &cobra.Command{
		Use: "version", Short: "Print version, commit, hash of the transition table and versions of payloads", Args: cobra.NoArgs,
		Long: `Version prints the program's version and commit, the hash of the built-in transition
table, which runs pin, the revision that it can read, and the newest payload version of
each type of event.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			facts := buildinfo.Read()
			switch format {
			case "text":
				_, err := fmt.Fprint(cmd.OutOrStdout(), facts.Text(root.Name()))
				return err
			case "json":
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(facts)
			}
			return Usage("--output: %q is not a format; use text or json", format)
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "text", "format of the output: text or json")
	root.AddCommand(cmd)
}

// Failed returns an error that ends the process with exit code 1.
func Failed(format string, args ...any) error {
	return &ExitError{Code: ExitFailure, Err: fmt.Errorf(format, args...)}
}

// Complete makes the shell offer the values of a flag.
func Complete(cmd *cobra.Command, flag string, values ...string) {
	// It fails only for a flag that does not exist, and then in every test.
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err)
	}
}

// ReadUpTo reads a file or, named -, stdin, up to that many bytes.
func ReadUpTo(stdin io.Reader, file string, limit int64) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(io.LimitReader(stdin, limit))
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, limit))
	return data, errors.Join(err, f.Close())
}
