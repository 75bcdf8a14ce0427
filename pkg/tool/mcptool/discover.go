package mcptool

import (
	"context"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	methodDiscover     = "server/discover"
	codeMethodNotFound = -32601
)

// discovering is the transport of a command. It answers server/discover itself if the command
// does not in time, so that the SDK continues with the older handshake.
type discovering struct {
	*process
	wait time.Duration

	mu    sync.Mutex
	timer *time.Timer
	// asked is the request that waits for its answer, dropped the one that got it here.
	asked, dropped jsonrpc.ID
	late           chan jsonrpc.Message
	read           chan received
	reading        bool
}

// received is what a read of the process returned.
type received struct {
	msg jsonrpc.Message
	err error
}

var _ mcp.Connection = (*discovering)(nil)

// Connect returns the connection.
func (d *discovering) Connect(context.Context) (mcp.Connection, error) {
	d.late, d.read = make(chan jsonrpc.Message, 1), make(chan received, 1)
	return d, nil
}

// Write sends a message and notes a server/discover.
func (d *discovering) Write(ctx context.Context, msg jsonrpc.Message) error {
	if req, ok := msg.(*jsonrpc.Request); ok && req.Method == methodDiscover {
		d.mu.Lock()
		d.asked = req.ID
		d.timer = time.AfterFunc(d.wait, d.giveUp)
		d.mu.Unlock()
	}
	return d.process.Write(ctx, msg)
}

// giveUp answers the server/discover that has no answer yet.
func (d *discovering) giveUp() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.asked.IsValid() {
		return
	}
	d.late <- &jsonrpc.Response{ID: d.asked, Error: &jsonrpc.Error{
		Code: codeMethodNotFound, Message: "the server does not answer " + methodDiscover,
	}}
	d.asked, d.dropped = jsonrpc.ID{}, d.asked
}

// Read returns the server's next message, or the answer that the server did not give.
func (d *discovering) Read(ctx context.Context) (jsonrpc.Message, error) {
	for {
		if !d.reading {
			d.reading = true
			go func() {
				msg, err := d.process.Read(ctx)
				d.read <- received{msg, err}
			}()
		}
		select {
		case msg := <-d.late:
			return msg, nil
		case got := <-d.read:
			d.reading = false
			if got.err != nil || !d.drops(got.msg) {
				return got.msg, got.err
			}
		}
	}
}

// drops reports whether the message is an answer that came too late.
func (d *discovering) drops(msg jsonrpc.Message) bool {
	res, ok := msg.(*jsonrpc.Response)
	if !ok {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if res.ID == d.asked {
		d.asked = jsonrpc.ID{}
		d.timer.Stop()
	}
	return d.dropped.IsValid() && res.ID == d.dropped
}

// Close ends the command.
func (d *discovering) Close() error {
	d.mu.Lock()
	d.asked = jsonrpc.ID{}
	if d.timer != nil {
		d.timer.Stop()
	}
	d.mu.Unlock()
	return d.process.Close()
}
