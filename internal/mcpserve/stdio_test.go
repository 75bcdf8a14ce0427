package mcpserve_test

import (
	"bufio"
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/mcpserve"
)

// A batch is answered and ends nothing, in a version of the protocol that has
// batches and in one that has none.
func TestBatches(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2025-03-26", "2025-06-18", "2025-11-25"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			in, client := io.Pipe()
			answers, out := io.Pipe()
			server := mcp.NewServer(&mcp.Implementation{Name: "x", Version: "1"}, nil)
			ended := make(chan error, 1)
			go func() { ended <- server.Run(t.Context(), mcpserve.Lines(in, out)) }()
			lines := bufio.NewScanner(answers)
			say := func(line string, want ...string) {
				t.Helper()
				_, err := io.WriteString(client, line+"\n")
				require.NoError(t, err)
				var got []string
				for range want {
					require.True(t, lines.Scan(), "the connection has ended")
					got = append(got, lines.Text())
				}
				for _, w := range want {
					require.Contains(t, strings.Join(got, "\n"), w)
				}
			}
			say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+version+`","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`, `"protocolVersion":"`+version+`"`)
			say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
			const note = `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`
			say(`[{"jsonrpc":"2.0","id":1,"method":"ping"}, `+note+`,`+note+`,{"jsonrpc":"2.0","id":2,"method":"ping"}]`, `"id":1`, `"id":2`)
			say(`[` + note + `,` + note + `]`)
			say(`{"jsonrpc":"2.0","id":3,"method":"ping"}`, `"id":3`)
			require.NoError(t, client.Close())
			<-ended
			require.NoError(t, out.Close())
		})
	}
}

// A line that is no message is answered, and the next one is read.
func TestLinesThatAreNoMessages(t *testing.T) {
	t.Parallel()
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	for name, c := range map[string]struct{ line, want string }{
		"no JSON":        {"nonsense", `"code":-32700`},
		"half an object": {`{"jsonrpc":"2.0",`, `"code":-32700`},
		"two on a line":  {ping + ping, `"code":-32700`},
		"too long":       {strings.Repeat("x", mcp.DefaultMaxLineLength+1), "the line is too long"},
		"a number":       {"5", `"code":-32600`},
		"no version":     {`{"id":1,"method":"ping"}`, `"code":-32600`},
		"an empty batch": {"[]", "the batch is empty"},
		"a bad batch":    {"[5]", `"code":-32600`},
		"nothing":        {" \r", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			conn, err := mcpserve.Lines(strings.NewReader(c.line+"\n"+ping), &out).Connect(t.Context())
			require.NoError(t, err)
			defer func() { require.NoError(t, conn.Close()) }()
			_, err = conn.Read(t.Context())
			require.NoError(t, err, "the line after it is read")
			require.Contains(t, out.String(), c.want)
			require.Equal(t, c.want != "", strings.HasPrefix(out.String(), `{"`), out.String())
			require.Equal(t, c.want != "", strings.Contains(out.String(), `"id":null`))
			_, err = conn.Read(t.Context())
			require.ErrorIs(t, err, io.EOF)
		})
	}
}
