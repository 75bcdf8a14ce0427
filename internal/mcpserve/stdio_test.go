package mcpserve_test

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/mcpserve"
)

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
