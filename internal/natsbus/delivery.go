package natsbus

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

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
	from, err := api.ParseReply(d.reply)
	if err != nil {
		return nil, err
	}
	d.attempt = from.Attempt
	d.rec = journal.Record{Subject: msg.Subject(), Seq: from.Seq, Body: msg.Data(), Stored: from.Stored}
	noteCondition(&d.rec, msg.Headers())
	return d, nil
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
		return fmt.Errorf("settle delivery of %s: %w", d.rec.Subject, api.Classify(err))
	}
	return nil
}
