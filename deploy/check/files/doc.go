// Package files checks the files for containers, systemd and releases: they are parsed by the
// libraries of the programs that read them, every command and flag in them exists, and every file
// that they name is there.
package files
