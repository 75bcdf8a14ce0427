// Package datadir opens the bus that a command's flags name, which may be in a data directory.
// A process that serves the directory is joined. Otherwise the server of the directory runs in
// this process.
package datadir
