// Package freeport finds addresses for servers that another process, or this one, is
// about to start. It gives an address to one process only, until that process ends. For
// tests, benchmarks and chaos only: a process that does not ask here can take one.
package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// The ports that are tried are below those that systems give to outgoing connections
// (from 32768 on Linux, 49152 elsewhere), which could take one before its server
// listens.
const lowest, highest = 15000, 32000

// reserved holds the UDP ports of the addresses that this process was given. A server
// listens on TCP, so they are in nobody's way, and the system frees them with the process.
var reserved struct {
	sync.Mutex
	ports []net.PacketConn
}

// Addresses returns n different addresses on the loopback that nobody listens on, and that
// no later call returns, in this process or another one, as long as this process lives.
func Addresses(n int) ([]string, error) {
	reserved.Lock()
	defer reserved.Unlock()
	var all []string
	for range 1000 {
		if len(all) == n {
			return all, nil
		}
		address := fmt.Sprintf("127.0.0.1:%d", lowest+rand.IntN(highest-lowest))
		port, err := net.ListenPacket("udp", address)
		if err != nil {
			continue // it was given away
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			_ = port.Close()
			continue // it is taken
		}
		_ = l.Close()
		reserved.ports = append(reserved.ports, port)
		all = append(all, address)
	}
	return nil, errors.New("no port of the loopback is free")
}
