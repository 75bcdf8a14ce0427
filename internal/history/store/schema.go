package store

import (
	"strings"

	"github.com/moorebus/moorebus/internal/history"
)

// version is that of the tables. A file of another version is built anew.
const version = "2"

// columns are those of the table of runs, with their types in SQLite. Times and durations are in nanoseconds.
// What a run does not have is NULL if it is compared or sorted by, else empty.
var columns = [][2]string{
	{"rid", "INTEGER PRIMARY KEY"},
	{"ns", "TEXT NOT NULL"},
	{"id", "TEXT NOT NULL"},
	{"shard", "INTEGER NOT NULL"},
	{"n", "INTEGER NOT NULL"},
	{"state", "TEXT NOT NULL"},
	{"agent", "TEXT NOT NULL"},
	{"model", "TEXT NOT NULL"},
	{"error", "TEXT NOT NULL"},
	{"experiment", "TEXT NOT NULL"},
	{"parent", "TEXT NOT NULL"},
	{"fork_of", "TEXT NOT NULL"},
	{"starter", "TEXT NOT NULL"},
	{"waiting", "TEXT NOT NULL"},
	{"paused", "INTEGER NOT NULL"},
	{"started", "INTEGER NOT NULL"},
	{"updated", "INTEGER NOT NULL"},
	{"ended", "INTEGER"},
	{"duration", "INTEGER"},
	{"slot", "INTEGER"},
	{"cost", "REAL"},
	{"tokens", "INTEGER NOT NULL"},
	{"steps", "INTEGER NOT NULL"},
	// high is the latest start of this run and of all those with a lower rid.
	{"high", "INTEGER NOT NULL"},
	// head is the hash itself, if it is one.
	{"head", "BLOB"},
	// row is the rest of the run's row as JSON, compressed once the run has ended, open what its fold needs to go on.
	{"row", "BLOB NOT NULL"},
	{"open", "BLOB"},
}

// schema has the tables and indexes. The version comes last, so a file that was not made completely has none.
//
// A text's id is made of the run's rid, of its number within the run, and of its kind, so the table of words
// alone says which runs have a text with a word, in the order of their rids. marks has what a run has several
// of: models, tools, codes of failed calls, pools, labels and scores.
var schema = []string{
	"CREATE TABLE positions (stream TEXT PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID",
	"CREATE TABLE runs (" + join(columns, " ", ", ") + ")",
	"CREATE UNIQUE INDEX runs_id ON runs (ns, id)",
	"CREATE INDEX runs_started ON runs (ns, started, experiment, state, agent, tokens, cost, slot)",
	"CREATE INDEX runs_state ON runs (ns, state, started)",
	"CREATE INDEX runs_agent ON runs (ns, agent, started)",
	"CREATE INDEX runs_ended ON runs (ns, ended)",
	"CREATE INDEX runs_cost ON runs (ns, cost)",
	"CREATE INDEX runs_open ON runs (ns, rid) WHERE ended IS NULL",
	"CREATE INDEX runs_error ON runs (ns, error, started) WHERE error <> ''",
	"CREATE INDEX runs_experiment ON runs (ns, experiment, started) WHERE experiment <> ''",
	"CREATE INDEX runs_parent ON runs (ns, parent) WHERE parent <> ''",
	"CREATE INDEX runs_fork_of ON runs (ns, fork_of) WHERE fork_of <> ''",
	"CREATE TABLE marks (ns TEXT, field TEXT, value TEXT, started INTEGER, rid INTEGER, number REAL, PRIMARY KEY (ns, field, value, started, rid)) WITHOUT ROWID",
	"CREATE TABLE notes (ns TEXT, id TEXT, labels BLOB, scores BLOB, PRIMARY KEY (ns, id)) WITHOUT ROWID",
	"CREATE TABLE texts (id INTEGER PRIMARY KEY, n INTEGER NOT NULL, at INTEGER NOT NULL)",
	"CREATE VIRTUAL TABLE words USING fts5 (word, content='', contentless_delete=1, detail=none, tokenize='ascii')",
	"CREATE TABLE uses (ns TEXT, hour INTEGER, kind TEXT, name TEXT, runs INTEGER, calls INTEGER, failed INTEGER, input INTEGER, output INTEGER, cached INTEGER, cost REAL, priced INTEGER, unpriced INTEGER, PRIMARY KEY (ns, hour, kind, name)) WITHOUT ROWID",
	"CREATE TABLE periods (ns TEXT, hour INTEGER, started INTEGER, ended INTEGER, failed INTEGER, events INTEGER, PRIMARY KEY (ns, hour)) WITHOUT ROWID",
	"CREATE TABLE meta (version TEXT NOT NULL)",
	"INSERT INTO meta VALUES ('" + version + "')",
}

// A text's id has this many bits for its number in the run and for its kind. Texts of a run beyond that
// number are not found.
const (
	kindBits = 3
	textBits = 16 + kindBits
)

// kinds are the kinds of texts, by their number in the ids of texts.
var kinds = []history.Kind{
	history.Task, history.Message, history.Call, history.Result, history.Answer, history.Error, history.CallError, history.Reasoning,
}

// join joins pairs.
func join(pairs [][2]string, within, between string) string {
	all := make([]string, len(pairs))
	for i, p := range pairs {
		all[i] = p[0] + within + p[1]
	}
	return strings.Join(all, between)
}
