package natsbus

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// requestsOn subscribes to a subject.
func requestsOn(t *testing.T, bus *Bus, subject string) <-chan *nats.Msg {
	t.Helper()
	asked := make(chan *nats.Msg, 2)
	_, err := bus.Conn().ChanSubscribe(subject, asked)
	require.NoError(t, err)
	return asked
}

// TestSecondAnswer answers a request twice, the second time while the next one waits
// in the same inbox.
func TestSecondAnswer(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	asked := requestsOn(t, bus, "twice")
	answers := make(chan string, 1)
	ask := func() {
		answer, err := bus.Request(t.Context(), 0, &nats.Msg{Subject: "twice"})
		if err != nil {
			answers <- err.Error()
			return
		}
		answers <- string(answer.Data)
	}
	for _, statuses := range []nats.Header{nil, {"Status": {"503"}}} {
		go ask()
		first := <-asked
		require.NoError(t, first.Respond([]byte("one")))
		require.Equal(t, "one", <-answers)
		go ask()
		second := <-asked
		require.NoError(t, first.RespondMsg(&nats.Msg{Header: statuses, Data: []byte("one again")}))
		require.NoError(t, second.Respond([]byte("two")))
		require.Equal(t, "two", <-answers)
	}
}

// TestSecondAcknowledgement is TestSecondAnswer for messages that are stored, whose inbox has one
// subject for all of them.
func TestSecondAcknowledgement(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	asked := requestsOn(t, bus, "stored")
	acks := make(chan string, 1)
	ask := func() {
		answer, err := bus.requestStored(t.Context(), time.Minute, &nats.Msg{Subject: "stored"})
		if err != nil {
			acks <- err.Error()
			return
		}
		acks <- string(answer.Data)
	}
	one, two := `{"stream":"MOORE_0","seq":1}`, `{"stream":"MOORE_0","seq":2}`
	refused := `{"error":{"code":400,"err_code":10071},"stream":"MOORE_0","seq":0}`
	reply := ""
	for _, answers := range [][]string{{one}, {one, two}, {refused}, {refused}} {
		go ask()
		request := <-asked
		require.True(t, reply == "" || reply == request.Reply)
		reply = request.Reply
		for _, answer := range answers {
			require.NoError(t, request.Respond([]byte(answer)))
		}
		require.Equal(t, answers[len(answers)-1], <-acks)
	}
}

// TestRepliesAreUsedAgain asks one after another, and twice at once.
func TestRepliesAreUsedAgain(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	asked := requestsOn(t, bus, "question")
	ask := func() <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := bus.Request(t.Context(), 0, &nats.Msg{Subject: "question"})
			done <- err
		}()
		return done
	}
	before := ""
	for range 3 {
		done := ask()
		msg := <-asked
		inbox := msg.Reply[:strings.LastIndexByte(msg.Reply, '.')]
		require.NotEqual(t, before, msg.Reply)
		if before != "" {
			require.True(t, strings.HasPrefix(before, inbox+"."), "%s, and %s before", msg.Reply, before)
		}
		before = msg.Reply
		require.NoError(t, msg.Respond(nil))
		require.NoError(t, <-done)
	}
	one, other := ask(), ask()
	a, b := <-asked, <-asked
	require.NotEqual(t, a.Reply, b.Reply)
	require.NoError(t, a.Respond(nil))
	require.NoError(t, b.Respond(nil))
	require.NoError(t, <-one)
	require.NoError(t, <-other)
}

// TestRequestsEndWithTheConnection closes it while an answer is waited for.
func TestRequestsEndWithTheConnection(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	bus.Timeout = time.Minute
	asked := requestsOn(t, bus, "slow")
	done := make(chan error, 1)
	go func() {
		_, err := bus.Request(t.Context(), 0, &nats.Msg{Subject: "slow"})
		done <- err
	}()
	<-asked
	bus.Conn().Close()
	require.ErrorIs(t, <-done, nats.ErrConnectionClosed)
	_, err := bus.Request(t.Context(), 0, &nats.Msg{Subject: "slow"})
	require.ErrorIs(t, err, nats.ErrConnectionClosed)
}

func TestParseAcknowledgement(t *testing.T) {
	t.Parallel()
	var ack pubAck
	require.True(t, ack.parse([]byte(`{"stream":"MOORE_0","seq":42}`)))
	require.Equal(t, pubAck{Stream: "MOORE_0", Seq: 42}, ack)
	for _, other := range []string{
		``, `{}`, `{"stream":"MOORE_0"}`, `{"stream":"MOORE_0","seq":}`, `{"stream":"MOORE_0","seq":42`, `{"stream":"MOORE_0","seq":-1}`,
		`{"stream":"MOORE_0","seq":42,"batch":"x","count":2}`, `{"stream":"MOORE_0","domain":"d","seq":42}`,
		`{"error":{"code":400,"err_code":10071},"stream":"MOORE_0","seq":0}`, `{"stream":"a\"b","seq":1}`,
	} {
		ack = pubAck{}
		require.False(t, ack.parse([]byte(other)), other)
		require.Zero(t, ack, other)
	}
}
