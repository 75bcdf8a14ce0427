package natsbus

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

var (
	ackBody    = []byte("+ACK")
	extendBody = []byte("+WPI")
)

// delivery is a message that a consumer handed to this process. Its verdict is published
// on its reply subject.
type delivery struct {
	conn    *nats.Conn
	rec     journal.Record
	reply   string
	attempt int
	// finished says that a verdict was sent.
	finished atomic.Bool
}

func newDelivery(conn *nats.Conn, msg *nats.Msg) (*delivery, error) {
	d := &delivery{conn: conn, reply: msg.Reply}
	from, err := api.ParseReply(d.reply)
	if err != nil {
		return nil, err
	}
	d.attempt = from.Attempt
	d.rec = journal.Record{Subject: msg.Subject, Seq: from.Seq, Body: msg.Data, Stored: from.Stored}
	noteCondition(&d.rec, msg.Header)
	return d, nil
}

// Record returns the record that was delivered.
func (d *delivery) Record() journal.Record { return d.rec }

// Attempt counts the times that it was delivered, from 1.
func (d *delivery) Attempt() int { return d.attempt }

// Ack finishes the delivery.
func (d *delivery) Ack() error { return d.finish(ackBody) }

// Retry gives the delivery back, to come again after the delay.
func (d *delivery) Retry(delay time.Duration) error {
	body := "-NAK"
	if delay > 0 {
		body += ` {"delay":` + strconv.FormatInt(delay.Nanoseconds(), 10) + `}`
	}
	return d.finish([]byte(body))
}

// Extend starts the ack wait again. After the verdict it does nothing.
func (d *delivery) Extend() error {
	if d.finished.Load() {
		return nil
	}
	return d.send(extendBody)
}

// finish sends the first verdict only: a second one could hit a redelivery.
func (d *delivery) finish(body []byte) error {
	if d.finished.Swap(true) {
		return nil
	}
	return d.send(body)
}

func (d *delivery) send(body []byte) error {
	if err := d.conn.Publish(d.reply, body); err != nil {
		return fmt.Errorf("finish the delivery of %s: %w", d.rec.Subject, api.Classify(err))
	}
	return nil
}

// A loan is a message on loan.<pool>.ask.<name>, to one of those who offer the name.
// It is answered on loan.<pool>.answer.<token>, a subject that the borrower builds
// itself: where it published on whatever reply subject a message names, the lender
// could have it publish where it may not.
const (
	loanPrefix  = "loan."
	loanAsks    = ".ask."
	loanAnswers = ".answer."

	// firstAnswer is how long a borrower may take to say that it has a loan.
	firstAnswer = 2 * time.Second
	// loanFailed is when a delivery comes again whose borrower could not do the work
	// for a reason that the log does not hold.
	loanFailed = 500 * time.Millisecond
)

type loanMessage struct {
	Subject string `json:"subject"`
	Key     string `json:"key"`
	Started uint64 `json:"started,omitempty"`
	// Ack is the delivery's reply subject, by which it is extended; the record's
	// sequence number and the attempt stand in it.
	Ack string `json:"ack"`
	// Answer is the last token of the subject that the lender listens to, Rhythm how
	// often it wants to hear something, in milliseconds.
	Answer string `json:"answer"`
	Rhythm int64  `json:"rhythm_ms"`
}

// loanAnswer says how far a loan is.
type loanAnswer struct {
	// State is one of the constants below.
	State string `json:"state"`
	// Retry is in milliseconds.
	Retry int64 `json:"retry_ms,omitempty"`
}

const (
	loanTaken   = "taken" // said again and again
	loanSettled = "settled"
	loanNone    = "none"
	loanBusy    = "busy"
	loanHeld    = "held"
	loanLost    = "lost"
)

// loanErrors are the errors that states stand for.
var loanErrors = map[string]error{
	loanNone: ports.ErrNoPeer, loanBusy: ports.ErrPeersBusy, loanHeld: ports.ErrPeerHolds, loanLost: ports.ErrPeerLost,
}

// loanToken makes a token of a tool's name, in which dots may stand.
func loanToken(name string) string { return strings.ReplaceAll(name, ".", "=") }

// Lend asks one of the workers that offer the loan's name to do the work. This process
// is one of them if it offers the name: the server picks.
func (b *Bus) Lend(ctx context.Context, d journal.Delivery, l ports.Loan) (time.Duration, error) {
	held, ok := d.(*delivery)
	if !ok {
		return 0, fmt.Errorf("lend %s: %w: the delivery is itself borrowed", l.Name, ports.ErrNoPeer)
	}
	terms, err := b.terms(ctx, actingDurable(l.Pool))
	if err != nil {
		return 0, fmt.Errorf("lend %s: %w", l.Name, err)
	}
	silence := terms.ackWait
	rhythm := min(max(silence/4, 10*time.Millisecond), 5*time.Second)
	ask := loanMessage{
		Subject: held.rec.Subject, Key: l.Key, Started: l.Started, Ack: held.reply, Answer: rand.Text(), Rhythm: rhythm.Milliseconds(),
	}
	body, err := json.Marshal(ask)
	if err != nil {
		return 0, err
	}
	subject, answers := loanPrefix+l.Pool+loanAsks+loanToken(l.Name), loanPrefix+l.Pool+loanAnswers+ask.Answer
	heard := make(chan *nats.Msg, 64)
	sub, err := b.NC.ChanSubscribe(answers, heard)
	if err != nil {
		return 0, fmt.Errorf("lend %s: %w", l.Name, api.Classify(err))
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only with the connection
	denied := make(chan error, 1)
	defer b.OnRefused(subject, func(err error) {
		select {
		case denied <- err:
		default:
		}
	})()
	if ctx.Err() != nil {
		return 0, context.Cause(ctx) // nobody was asked
	}
	if err := b.NC.PublishMsg(&nats.Msg{Subject: subject, Reply: answers, Data: body}); err != nil {
		return 0, fmt.Errorf("lend %s: %w", l.Name, api.Classify(err))
	}
	retry, err := b.awaitLoan(ctx, heard, denied, silence)
	if err != nil {
		err = fmt.Errorf("lend %s: %w", l.Name, err)
	}
	return retry, err
}

// awaitLoan waits for the end of a loan. Time in which this connection is down counts
// for nothing: nobody can be heard then.
func (b *Bus) awaitLoan(ctx context.Context, heard <-chan *nats.Msg, denied <-chan error, silence time.Duration) (time.Duration, error) {
	last, taken := time.Now(), false
	look := time.NewTicker(min(silence, firstAnswer) / 8)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			// A borrower may have begun although its answer has not arrived.
			return 0, fmt.Errorf("%w: %w", ports.ErrPeerHolds, context.Cause(ctx))
		case err := <-denied:
			return 0, err
		case msg := <-heard:
			var a loanAnswer
			if msg.Header.Get("Status") != "" || json.Unmarshal(msg.Data, &a) != nil {
				return 0, ports.ErrNoPeer // nobody listens
			}
			if a.State == loanSettled {
				return time.Duration(a.Retry) * time.Millisecond, nil
			}
			if err := loanErrors[a.State]; err != nil {
				return 0, err
			}
			last, taken = time.Now(), true
		case now := <-look.C:
			switch {
			case !b.NC.IsConnected():
				last = now
			case !taken && now.Sub(last) > min(silence, firstAnswer):
				return 0, fmt.Errorf("%w: no answer", ports.ErrNoPeer)
			case now.Sub(last) > silence:
				return 0, ports.ErrPeerLost
			}
		}
	}
}

// Borrow offers a name in a pool.
func (b *Bus) Borrow(pool, name string, take func(journal.Delivery, ports.Loan) (time.Duration, error)) (stop func(), err error) {
	sub, err := b.NC.QueueSubscribe(loanPrefix+pool+loanAsks+loanToken(name), "borrowers", func(msg *nats.Msg) {
		var ask loanMessage
		d, err := b.borrowed(pool, msg, &ask)
		if err != nil {
			b.Log.Warn("a loan cannot be read", "subject", msg.Subject, "reason", err)
			return
		}
		go b.serveLoan(d, ports.Loan{Pool: pool, Name: name, Key: ask.Key, Started: ask.Started}, &ask, take)
	})
	if err != nil {
		return nil, fmt.Errorf("borrow %s: %w", name, api.Classify(err))
	}
	return func() { _ = sub.Unsubscribe() }, nil
}

// borrowed reads a loan's message.
func (b *Bus) borrowed(pool string, msg *nats.Msg, ask *loanMessage) (*borrowed, error) {
	if err := json.Unmarshal(msg.Data, ask); err != nil {
		return nil, err
	}
	if ask.Answer == "" || strings.ContainsAny(ask.Answer, ".*> \t\r\n") {
		return nil, fmt.Errorf("answers to %.100q", ask.Answer)
	}
	// A stored message that somebody had the server deliver here has another reply, or none.
	if msg.Reply != loanPrefix+pool+loanAnswers+ask.Answer {
		return nil, fmt.Errorf("its reply subject %.100q is not that of its answer", msg.Reply)
	}
	from, err := api.ParseReply(ask.Ack)
	if err != nil {
		return nil, err
	}
	return &borrowed{delivery: delivery{conn: b.NC, rec: journal.Record{Subject: ask.Subject, Seq: from.Seq}, reply: ask.Ack, attempt: from.Attempt}}, nil
}

// borrowed is a delivery that another worker holds.
type borrowed struct{ delivery }

// Ack does nothing: the lender finishes the delivery.
func (d *borrowed) Ack() error { return nil }

// Retry does nothing.
func (d *borrowed) Retry(time.Duration) error { return nil }

// serveLoan does the work and says so again and again until it is done.
func (b *Bus) serveLoan(d *borrowed, l ports.Loan, ask *loanMessage, take func(journal.Delivery, ports.Loan) (time.Duration, error)) {
	say := func(a loanAnswer) {
		body, err := json.Marshal(a)
		if err == nil {
			// An answer that does not arrive is missed, and the lender looks in the log.
			_ = b.NC.Publish(loanPrefix+l.Pool+loanAnswers+ask.Answer, body)
		}
	}
	say(loanAnswer{State: loanTaken})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		rhythm := time.NewTicker(min(max(time.Duration(ask.Rhythm)*time.Millisecond, 10*time.Millisecond), 5*time.Second))
		defer rhythm.Stop()
		for {
			select {
			case <-stop:
				return
			case <-rhythm.C:
				_ = d.Extend() // if the bus is away, the delivery comes again by itself
				say(loanAnswer{State: loanTaken})
			}
		}
	}()
	retry, err := take(d, l)
	close(stop)
	<-stopped
	say(endOfLoan(retry, err))
}

// endOfLoan is the answer that a loan's end makes.
func endOfLoan(retry time.Duration, err error) loanAnswer {
	if err == nil {
		return loanAnswer{State: loanSettled, Retry: retry.Milliseconds()}
	}
	for state, known := range loanErrors {
		if errors.Is(err, known) {
			return loanAnswer{State: state}
		}
	}
	return loanAnswer{State: loanSettled, Retry: loanFailed.Milliseconds()}
}
