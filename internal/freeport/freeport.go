// Package freeport finds addresses for servers that another process, or this one, is
// about to start. For tests, benchmarks and chaos only: nothing holds an address for
// whoever asked.
package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// The ports that are tried are below those that systems give to outgoing connections
// (from 32768 on Linux, 49152 elsewhere), which could take one before its server
// listens.
const lowest, highest = 15000, 32000

// Addresses returns n different addresses on the loopback that nobody listens on.
func Addresses(n int) ([]string, error) {
	var all []string
	for range 1000 {
		if len(all) == n {
			return all, nil
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", lowest+rand.IntN(highest-lowest)))
		if err != nil {
			continue // it is taken
		}
		defer func() { _ = l.Close() }() // at the end: else the next one may be the same
		all = append(all, l.Addr().String())
	}
	return nil, errors.New("no port of the loopback is free")
}
