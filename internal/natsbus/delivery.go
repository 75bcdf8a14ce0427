package natsbus

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const ackPrefix = "$JS.ACK."

var (
	ackBody    = []byte("+ACK")
	extendBody = []byte("+WPI")
)

// delivery is a message that a consumer handed to this process. What settles it
// goes to its reply subject.
type delivery struct {
	conn    *nats.Conn
	rec     journal.Record
	reply   string
	attempt int
	settled atomic.Bool
}

func newDelivery(conn *nats.Conn, msg jetstream.Msg) (*delivery, error) {
	d := &delivery{conn: conn, reply: msg.Reply()}
	from, err := parseReply(d.reply)
	if err != nil {
		return nil, err
	}
	d.attempt = from.attempt
	d.rec = journal.Record{Subject: msg.Subject(), Seq: from.seq, Body: msg.Data(), Stored: from.stored}
	noteCondition(&d.rec, msg.Headers())
	return d, nil
}

// delivered is what a delivery's reply subject says of it.
type delivered struct {
	attempt      int
	seq, pending uint64
	stored       time.Time
}

// parseReply reads a delivery's reply subject. There are two forms:
// $JS.ACK.<stream>.<consumer>.<delivered>.<seq>.<consumer seq>.<time>.<pending>
// and the same with a domain and an account in front of the stream, and possibly
// one token more at the end. Compared with the library's Metadata, which Consume and
// OrderedConsumer would call for each message, it allocates nothing.
func parseReply(reply string) (delivered, error) {
	skip, tokens := 4, strings.Count(reply, ".")+1
	if tokens >= 11 {
		skip = 6
	}
	if !strings.HasPrefix(reply, ackPrefix) || tokens < skip+5 {
		return delivered{}, fmt.Errorf("reply subject %q is not that of a delivery", reply)
	}
	rest := reply
	for range skip {
		_, rest, _ = strings.Cut(rest, ".")
	}
	var n [5]int64
	for i := range n {
		var token string
		var err error
		token, rest, _ = strings.Cut(rest, ".")
		if n[i], err = strconv.ParseInt(token, 10, 64); err != nil {
			return delivered{}, fmt.Errorf("reply subject %q: %w", reply, err)
		}
	}
	return delivered{attempt: int(n[0]), seq: uint64(n[1]), stored: time.Unix(0, n[3]).UTC(), pending: uint64(n[4])}, nil
}

// Record returns the record that was delivered.
func (d *delivery) Record() journal.Record { return d.rec }

// Attempt counts the times that it was delivered, from 1.
func (d *delivery) Attempt() int { return d.attempt }

// Ack settles the delivery.
func (d *delivery) Ack() error { return d.settle(ackBody) }

// Retry gives the delivery back, to come again after the delay.
func (d *delivery) Retry(delay time.Duration) error {
	body := "-NAK"
	if delay > 0 {
		body += ` {"delay":` + strconv.FormatInt(delay.Nanoseconds(), 10) + `}`
	}
	return d.settle([]byte(body))
}

// Extend starts the ack wait again. After the delivery was settled it does
// nothing.
func (d *delivery) Extend() error {
	if d.settled.Load() {
		return nil
	}
	return d.send(extendBody)
}

// settle sends the first verdict alone: a second one could hit a redelivery.
func (d *delivery) settle(body []byte) error {
	if d.settled.Swap(true) {
		return nil
	}
	return d.send(body)
}

func (d *delivery) send(body []byte) error {
	if err := d.conn.Publish(d.reply, body); err != nil {
		return fmt.Errorf("settle delivery of %s: %w", d.rec.Subject, classify(err))
	}
	return nil
}
