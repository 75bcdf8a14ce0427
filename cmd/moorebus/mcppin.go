package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/codec"
	"github.com/moorebus/moorebus/internal/compose/toolfile"
	"github.com/moorebus/moorebus/internal/mcppins"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/pkg/tool/mcptool"
)

func pinCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pin [SERVER...]",
		Short: "Accept the current tool definitions of MCP servers",
		Long: `Pin connects to the MCP servers of a tool file and writes their tool definitions, and
their instructions for models, to the file that mcp.pinned names. A process with this
tool file then offers only these definitions: it skips a new or changed tool until
somebody reviews it (moorebus mcp diff) and pins it. Running processes notice within
30 s.

Like diff it shows what it accepts, since a server may have changed its definitions after
the last review. With SERVER it replaces only the pins of these servers. If one server
does not answer, it writes nothing.`,
		Example: `  moorebus mcp pin --tools tools.yaml
  moorebus mcp pin files search`,
	}
	return pinning(cmd, func(p *pins) error {
		before, err := mcppins.Read(p.path)
		if err != nil {
			if p.named && !errors.Is(err, fs.ErrNotExist) { // the pins of the others stay
				return err
			}
			before = mcppins.New()
		}
		now, err := p.ask()
		if err != nil {
			return err
		}
		if p.named {
			for name, server := range before.Servers {
				if _, asked := now.Servers[name]; !asked {
					now.Servers[name] = server
				}
			}
		}
		if err := now.Write(p.path); err != nil {
			return err
		}
		for _, name := range p.compared(before) {
			writePinDiff(p.out, name, before.Servers[name], now.Servers[name])
		}
		for _, name := range p.names {
			cli.Say("%s: %d tools are pinned in %s", terminal.Visible(name), len(now.Servers[name].Tools), p.path)
		}
		return nil
	})
}

func pinDiffCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff [SERVER...]",
		Short: "Show tool definitions of MCP servers that are not pinned",
		Long: `Diff connects to the MCP servers of a tool file and compares their tool definitions, and
their instructions for models, with the file that mcp.pinned names. It shows what was
added (+), removed (-) and changed (~). It escapes characters that a terminal would hide
or interpret, and names characters that look like others.

The exit code is 0 if there is no difference, and 3 if there is one.`,
		Example: `  moorebus mcp diff --tools tools.yaml
  moorebus mcp diff files && echo unchanged`,
	}
	return pinning(cmd, func(p *pins) error {
		before, err := mcppins.Read(p.path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			cli.Say("%s does not exist: nothing is pinned", p.path)
			before = mcppins.New()
		case err != nil:
			return err
		}
		now, failed := p.ask()
		differs := false
		for _, name := range p.compared(before) {
			if server, asked := now.Servers[name]; asked || !p.has(name) {
				differs = writePinDiff(p.out, name, before.Servers[name], server) || differs
			}
		}
		if failed == nil && differs {
			return &cli.ExitError{Code: cli.ExitDiverged}
		}
		return failed
	})
}

// pins are the pinned definitions of a tool file.
type pins struct {
	ctx     context.Context
	logger  *slog.Logger
	out     io.Writer
	path    string
	servers []mcptool.Options
	// names are the servers that are asked, named says that the command names them.
	names []string
	named bool
}

// pinning adds what the two commands have in common.
func pinning(cmd *cobra.Command, run func(*pins) error) *cobra.Command {
	var file string
	cmd.Flags().StringVar(&file, "tools", "tools.yaml", "`file` of tools whose key mcp names the servers; the file may also contain an agent")
	log := cli.AddLogFlags(cmd.Flags(), slog.LevelWarn)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		logger, err := log.Logger()
		if err != nil {
			return err
		}
		docs, err := agentfile.ReadFile(file, agentfile.Options{})
		if err != nil {
			return err
		}
		if docs.Tools == nil || docs.Tools.MCP == nil || docs.Tools.MCP.Pinned == "" {
			return cli.Usage("%s pins nothing: write mcp: {file: .mcp.json, pinned: mcp-pins.json} in it, or name another file with --tools", file)
		}
		p := &pins{ctx: cmd.Context(), logger: logger, out: cmd.OutOrStdout(), path: docs.Tools.MCP.Pinned, named: len(args) > 0}
		if p.servers, _, err = toolfile.MCPServers(docs.Tools.MCP); err != nil {
			return err
		}
		for _, o := range p.servers {
			if !p.named || slices.Contains(args, o.Name) {
				p.names = append(p.names, o.Name)
			}
		}
		for _, name := range args {
			if !p.has(name) {
				return cli.Usage("%s has no server %q", docs.Tools.MCP.File, name)
			}
		}
		return run(p)
	}
	return cmd
}

func (p *pins) has(name string) bool { return slices.Contains(p.names, name) }

// compared returns the servers to compare: those that are asked, and those that are pinned and
// gone.
func (p *pins) compared(before *mcppins.File) []string {
	names := slices.Clone(p.names)
	if !p.named {
		names = slices.AppendSeq(names, maps.Keys(before.Servers))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ask returns what the servers say. The error names those that did not answer.
func (p *pins) ask() (*mcppins.File, error) {
	now := mcppins.New()
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	for _, o := range p.servers {
		if !p.has(o.Name) {
			continue
		}
		wg.Go(func() {
			said, err := mcptool.Read(p.ctx, o, p.logger)
			var server mcppins.Server
			if err == nil {
				server, err = mcppins.Of(said)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("the MCP server %q: %w", o.Name, err))
				return
			}
			for _, name := range slices.Sorted(maps.Keys(said.Left)) {
				cli.Say("%s", terminal.Visible(fmt.Sprintf("%s: %q cannot be offered: %s", o.Name, name, said.Left[name])))
			}
			now.Servers[o.Name] = server
		})
	}
	wg.Wait()
	return now, errors.Join(errs...)
}

// writePinDiff shows what differs at one server, and reports whether anything does.
func writePinDiff(w io.Writer, server string, before, now mcppins.Server) bool {
	was, is := before.All(), now.All()
	names := slices.AppendSeq(slices.Collect(maps.Keys(was)), maps.Keys(is))
	slices.Sort(names)
	differs := false
	for _, name := range slices.Compact(names) {
		old, had := was[name]
		cur, has := is[name]
		if old.SHA256 == cur.SHA256 {
			continue
		}
		differs = true
		mark := "~"
		switch {
		case !had:
			mark = "+"
		case !has:
			mark = "-"
		}
		_, _ = fmt.Fprintf(w, "%s %s: %s\n", mark, revealed(server), revealed(mcppins.Title(name)))
		writeChanges(w, leavesOf(old.Definition), leavesOf(cur.Definition))
	}
	return differs
}

// leavesOf returns the values of a definition as JSON, by their JSON pointers.
func leavesOf(definition json.RawMessage) map[string]string {
	leaves := map[string]string{}
	var add func(at string, v any)
	add = func(at string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for key, value := range v {
				add(at+"/"+key, value)
			}
			if len(v) == 0 {
				leaves[at] = "{}"
			}
		case []any:
			for i, value := range v {
				add(fmt.Sprintf("%s/%d", at, i), value)
			}
			if len(v) == 0 {
				leaves[at] = "[]"
			}
		case string:
			leaves[at] = strconv.Quote(v)
		default:
			leaves[at] = fmt.Sprint(v)
		}
	}
	var v any
	if codec.Strict(definition, &v) == nil { // else there is none
		add("", v)
	}
	return leaves
}

// writeChanges shows the values that differ.
func writeChanges(w io.Writer, was, is map[string]string) {
	paths := slices.AppendSeq(slices.Collect(maps.Keys(was)), maps.Keys(is))
	slices.Sort(paths)
	for _, path := range slices.Compact(paths) {
		old, had := was[path]
		cur, has := is[path]
		if had && has && old == cur {
			continue
		}
		at := strings.TrimPrefix(revealed(path)+": ", ": ")
		note := ""
		if had && has {
			old, cur, note = around(old, cur)
		}
		if had {
			_, _ = fmt.Fprintf(w, "    - %s%s\n", at, revealed(old))
		}
		if has {
			_, _ = fmt.Fprintf(w, "    + %s%s%s\n", at, revealed(cur), note)
		}
	}
}

// keepAround is how much is shown before and after what differs, in characters.
const keepAround = 40

// around cuts what two texts have in common at their beginning and end, and names the first
// characters that differ if one of them is not ASCII: it may look like the other.
func around(old, cur string) (a, b, note string) {
	x, y := []rune(old), []rune(cur)
	begin, end := 0, 0
	for begin < min(len(x), len(y)) && x[begin] == y[begin] {
		begin++
	}
	for end < min(len(x), len(y))-begin && x[len(x)-1-end] == y[len(y)-1-end] {
		end++
	}
	if begin < min(len(x), len(y)) && max(x[begin], y[begin]) > unicode.MaxASCII {
		note = fmt.Sprintf("   (%U is now %U)", x[begin], y[begin])
	}
	cut := func(text []rune) string {
		from, to := max(0, begin-keepAround), min(len(text), len(text)-end+keepAround)
		said := string(text[from:to])
		if from > 0 {
			said = "…" + said
		}
		if to < len(text) {
			said += "…"
		}
		return said
	}
	return cut(x), cut(y), note
}

// revealed is a text with escapes for all that a terminal would not show as it is.
func revealed(text string) string {
	var b strings.Builder
	for _, r := range terminal.Visible(text) {
		switch {
		case r == '\n':
			b.WriteString(`\n`)
		case r != '\t' && !unicode.IsGraphic(r), unicode.Is(unicode.Variation_Selector, r), r == '\u3164', r == '\u115f', r == '\u1160', r == '\uffa0':
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
