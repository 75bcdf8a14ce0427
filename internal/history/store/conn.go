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
)

// conn is a pool of connections to the database.
type conn struct{ db *sql.DB }

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
	return &conn{db}, nil
}

// transaction is a transaction with its prepared statements.
type transaction struct {
	*sql.Tx
	prepared map[string]*sql.Stmt
}

func (c *conn) begin(ctx context.Context) (*transaction, error) {
	tx, err := c.db.BeginTx(ctx, nil)
	return &transaction{tx, map[string]*sql.Stmt{}}, err
}

// statement returns a statement of the transaction. It ends with it.
func (t *transaction) statement(ctx context.Context, query string) (*sql.Stmt, error) {
	if s := t.prepared[query]; s != nil {
		return s, nil
	}
	s, err := t.PrepareContext(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", query, err)
	}
	t.prepared[query] = s
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
