package main

import (
	"os"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/pkg/journal/natsbus"
)

// place is where flags and environment point, for commands that look at it
// before there is a bus to open: at a server, or else at a data directory.
type place struct {
	remote  bool
	connect natsbus.ConnectOptions
	dir     string
}

// findPlace looks in the order that [cli.BusFlags] has: --nats and --data, the
// environment, the default.
func findPlace(url, data string, getenv func(string) string) (place, error) {
	if url != "" && data != "" {
		return place{}, cli.Usage("--nats and --data exclude each other: the log is on a bus or in a directory")
	}
	if data != "" {
		return place{dir: data}, nil
	}
	connect, err := natsbus.FromEnv(getenv)
	if err != nil {
		return place{}, &cli.ExitError{Code: cli.ExitConfig, Err: err}
	}
	if url != "" {
		connect.URL = url
	}
	if connect.URL != "" {
		return place{remote: true, connect: connect}, nil
	}
	if dir := getenv("MOOREBUS_DATA"); dir != "" {
		return place{dir: dir}, nil
	}
	dir, err := cli.DataDir(getenv)
	return place{dir: dir}, err
}

// missing reports whether the place is a directory that is not there.
func (p place) missing() bool {
	if p.remote {
		return false
	}
	_, err := os.Stat(p.dir)
	return os.IsNotExist(err)
}
