package freeport

import (
	"net"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAddresses(t *testing.T) {
	t.Parallel()
	all, err := Addresses(20)
	require.NoError(t, err)
	require.Len(t, all, 20)
	for _, address := range all {
		host, port, err := net.SplitHostPort(address)
		require.NoError(t, err)
		require.Equal(t, "127.0.0.1", host)
		n, err := strconv.Atoi(port)
		require.NoError(t, err)
		require.Less(t, n, 32768, "outgoing connections have those from there on")
		l, err := net.Listen("tcp", address)
		require.NoError(t, err, "the address is free")
		defer func() { require.NoError(t, l.Close()) }()
	}
	_, err = net.ListenPacket("udp", all[0])
	require.Error(t, err, "another process must not be given the address")
	slices.Sort(all)
	require.Len(t, slices.Compact(all), 20)
	more, err := Addresses(0)
	require.NoError(t, err)
	require.Empty(t, more)
}
