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
	attempt, seq, stored, err := parseReply(d.reply)
	if err != nil {
		return nil, err
	}
	d.attempt = attempt
	d.rec = journal.Record{Subject: msg.Subject(), Seq: seq, Body: msg.Data(), Stored: stored}
	noteCondition(&d.rec, msg.Headers())
	return d, nil
}

// parseReply reads what a delivery's reply subject says. There are two forms:
// $JS.ACK.<stream>.<consumer>.<delivered>.<seq>.<consumer seq>.<time>.<pending>
// and the same with a domain and an account in front of the stream, and possibly
// one token more at the end.
func parseReply(reply string) (attempt int, seq uint64, stored time.Time, err error) {
	skip, tokens := 4, strings.Count(reply, ".")+1
	if tokens >= 11 {
		skip = 6
	}
	if !strings.HasPrefix(reply, ackPrefix) || tokens < skip+5 {
		return 0, 0, time.Time{}, fmt.Errorf("reply subject %q is not that of a delivery", reply)
	}
	rest := reply
	for range skip {
		_, rest, _ = strings.Cut(rest, ".")
	}
	var numbers [4]int64
	for i := range numbers {
		var token string
		token, rest, _ = strings.Cut(rest, ".")
		if numbers[i], err = strconv.ParseInt(token, 10, 64); err != nil {
			return 0, 0, time.Time{}, fmt.Errorf("reply subject %q: %w", reply, err)
		}
	}
	return int(numbers[0]), uint64(numbers[1]), time.Unix(0, numbers[3]).UTC(), nil
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
