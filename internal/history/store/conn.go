package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"sync/atomic"

	lru "github.com/hashicorp/golang-lru/v2"
)

// conn is a pool of connections to the database. prepared are the statements of its transactions, each of which
// is compiled once.
type conn struct {
	db       *sql.DB
	prepared map[string]*sql.Stmt
}

// readers is how many connections read at once.
const readers = 4

// The settings of connections. NORMAL flushes at checkpoints alone: the last changes may be lost, the file
// stays intact.
var (
	writing = []string{
		"busy_timeout(10000)", "application_id(" + strconv.Itoa('M'<<24|'B'<<16|'v'<<8|'w') + ")", "journal_mode(WAL)", "synchronous(NORMAL)",
		"cache_size(-65536)", "wal_autocheckpoint(4000)", "journal_size_limit(67108864)",
	}
	reading = []string{"busy_timeout(10000)", "query_only(1)", "cache_size(-16384)"}
)

// inMemory counts stores in memory, each of which needs a name.
var inMemory atomic.Int64

// source is the name of a database for its driver: a file's, or without one of a new database in memory.
func source(file string) (string, error) {
	if file == "" {
		return fmt.Sprintf("file:/views%d?vfs=memdb&", inMemory.Add(1)), nil
	}
	absolute, err := filepath.Abs(file)
	return "file:" + (&url.URL{Path: absolute}).EscapedPath() + "?", err
}

// dial opens connections to a database.
func dial(source string, settings []string, most int) (*conn, error) {
	db, err := sql.Open("sqlite", source+url.Values{"_pragma": settings, "_txlock": {"immediate"}}.Encode())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(most)
	db.SetMaxIdleConns(most)
	return &conn{db, map[string]*sql.Stmt{}}, nil
}

// transaction is a transaction with its statements, and with the open runs of the store. changed are the runs
// that it changes, as they are then; nil: read them again.
type transaction struct {
	*sql.Tx
	conn     *conn
	prepared map[string]*sql.Stmt
	known    *lru.Cache[runKey, *stored]
	changed  map[runKey]*stored
}

func (s *Store) begin(ctx context.Context) (*transaction, error) {
	tx, err := s.write.db.BeginTx(ctx, nil)
	return &transaction{tx, s.write, map[string]*sql.Stmt{}, s.known, map[runKey]*stored{}}, err
}

// end commits the transaction. Its new statements are prepared for those that follow, since the only connection
// is free now.
func (t *transaction) end(ctx context.Context) error {
	if err := t.Commit(); err != nil {
		return err
	}
	for query := range t.prepared {
		if t.conn.prepared[query] == nil {
			s, err := t.conn.db.PrepareContext(ctx, query)
			if err != nil {
				return err
			}
			t.conn.prepared[query] = s
		}
	}
	for key, r := range t.changed {
		if r != nil && r.run.Ended.IsZero() && len(r.run.Task)+len(r.run.Open) <= largest {
			t.known.Add(key, r)
		} else {
			t.known.Remove(key)
		}
	}
	return nil
}

// statement returns a statement of the transaction. It ends with it.
func (t *transaction) statement(ctx context.Context, query string) (*sql.Stmt, error) {
	s := t.prepared[query]
	if s == nil {
		if ready := t.conn.prepared[query]; ready != nil {
			s = t.StmtContext(ctx, ready)
		} else {
			var err error
			if s, err = t.PrepareContext(ctx, query); err != nil {
				return nil, fmt.Errorf("%s: %w", query, err)
			}
		}
		t.prepared[query] = s
	}
	return s, nil
}

// exec runs a statement.
func (t *transaction) exec(ctx context.Context, query string, args ...any) error {
	s, err := t.statement(ctx, query)
	if err == nil {
		_, err = s.ExecContext(ctx, args...)
	}
	return err
}

// get reads the first row that a query has into targets. Its error is [sql.ErrNoRows] if there is none.
func (t *transaction) get(ctx context.Context, query string, args []any, targets ...any) error {
	s, err := t.statement(ctx, query)
	if err != nil {
		return err
	}
	return s.QueryRowContext(ctx, args...).Scan(targets...)
}

// scan reads the columns of a row into targets.
type scan func(targets ...any) error

// query calls each with every row. It ends at the first error, which it returns, but for errEnough.
func (s *Store) query(ctx context.Context, query string, args []any, each func(scan) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	rows, err := s.read.db.QueryContext(ctx, query, args...)
	if err != nil {
		return s.seen(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := each(rows.Scan); errors.Is(err, errEnough) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return s.seen(rows.Err())
}

// errEnough ends a query.
var errEnough = errors.New("enough rows")
