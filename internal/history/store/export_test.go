package store

import "database/sql"

// SQL opens a file as SQLite does.
func SQL(file string) (*sql.DB, error) { return sql.Open("sqlite", file) }
