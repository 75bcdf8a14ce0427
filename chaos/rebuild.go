package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// rebuild puts an export of the log into an empty server and holds that to the
// original: the same runs, byte for byte, and the same verdict on them.
func (g *game) rebuild(ctx context.Context, original *audit, verdict string) error {
	defer g.phase("rebuilding")
	server, url, err := g.fleet.addSpare()
	if err != nil {
		return err
	}
	if err := server.start(); err != nil {
		return err
	}
	if err := g.fleet.initAt(ctx, url, "--shards", fmt.Sprint(g.o.shards)); err != nil {
		return err
	}
	file := filepath.Join(g.o.dir, "runs.jsonl")
	for _, args := range [][]string{
		{"export", "--all", "--out", file},
		{"import", file, "--no-resume", "--nats", url},
	} {
		if out, code, err := g.fleet.output(ctx, "moorebus", args...); err != nil || code != 0 {
			g.report.found(fmt.Sprintf("moorebus %v: exit %d, %v: %s", args, code, err, out))
			return nil
		}
	}
	out, code, err := g.fleet.output(ctx, "replay", "verify", "--all", "--strict", "--nats", url)
	if err != nil {
		return err
	}
	if code != 0 || untimed(out) != untimed(verdict) {
		g.report.found(fmt.Sprintf("replay verify --all --strict of what was rebuilt: exit %d: %s\nof the original: %s", code, out, verdict))
	}
	rebuilt, err := connect(url, g.o.shards)
	if err != nil {
		return err
	}
	defer rebuilt.conn.Close()
	records, err := rebuilt.records(ctx)
	if err != nil {
		return err
	}
	again := newAudit(g.report.found, nil)
	again.read(records)
	compare(original, again, g.report.found)
	again.refs = original.refs
	again.checkResults(ctx, rebuilt)
	return nil
}

// untimed is what replay verify says, without how long it took.
func untimed(verdict string) string {
	counts, _, _ := strings.Cut(verdict, " (")
	return counts
}

// compare reports the runs of a log that another one has not, byte for byte.
func compare(original, rebuilt *audit, found func(string)) {
	if len(original.runs) != len(rebuilt.runs) {
		found(fmt.Sprintf("%d runs were rebuilt, there are %d", len(rebuilt.runs), len(original.runs)))
	}
	for id, h := range original.runs {
		if other := rebuilt.runs[id]; other == nil || !slices.Equal(h.hashes, other.hashes) {
			found(fmt.Sprintf("run %s was not rebuilt as it is", id))
		}
	}
}
