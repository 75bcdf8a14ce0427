package pull

import (
	"runtime"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// A source asks for twice as much each time that it got all it asked for, and no more: a
// source that trickles must not hold the slots that another one's burst needs.
func TestShare(t *testing.T) {
	p := newPuller(nil, make([]Source, 5), 64, func(*nats.Msg) {})
	for _, s := range p.sources {
		s.ready = true
	}
	grants := func() (all []int) {
		p.share(p.slots - p.running - p.credits)
		for _, s := range p.sources {
			all = append(all, s.grant)
			s.grant = 0
		}
		return all
	}
	require.Equal(t, []int{3, 3, 3, 3, 3}, grants(), "a quarter of the slots")

	first := p.sources[0]
	ask := func(n int) *request {
		r := &request{source: first, sub: &nats.Subscription{Subject: "inbox"}, left: n}
		p.bySub[r.sub] = r
		first.credits, p.credits = n, n
		return r
	}
	deliver := func(r *request, n int) {
		for range n {
			p.receive(t.Context(), &nats.Msg{Subject: "moore.0", Sub: r.sub})
		}
		for p.running > 0 {
			<-p.freed
			p.running -= int(p.finished.Swap(0))
		}
	}
	none := func(r *request) {
		p.receive(t.Context(), &nats.Msg{Subject: "inbox", Header: nats.Header{"Status": {"408"}}, Sub: r.sub})
	}
	deliver(ask(3), 3)
	require.Equal(t, []int{6, 3, 3, 3, 3}, grants())
	deliver(ask(6), 6)
	require.Equal(t, []int{12, 3, 3, 3, 3}, grants())
	some := ask(12)
	deliver(some, 5)
	none(some)
	require.Equal(t, []int{12, 3, 3, 3, 3}, grants(), "it is as busy as before")
	none(ask(12))
	require.Equal(t, []int{3, 3, 3, 3, 3}, grants(), "nothing came")
	require.Zero(t, p.credits)
	close(p.work)
	p.handlers.Wait()
}

// Where there are few slots, the sources are asked in turn for what they have at once, and
// only after a round without deliveries is a request left standing.
func TestTurns(t *testing.T) {
	p := newPuller(nil, make([]Source, 3), 1, func(*nats.Msg) {})
	for _, s := range p.sources {
		s.ready = true
	}
	for round := range 2 {
		for range p.sources {
			s := p.fewestCredits()
			require.NotNil(t, s)
			expiry, _ := p.terms(s, 1)
			require.Equal(t, round == 1, expiry > 0)
			p.misses++
		}
	}
}

// A handler that ends its goroutine gives its slot back.
func TestHandlerThatExits(t *testing.T) {
	handled := make(chan string, 2)
	p := newPuller(nil, make([]Source, 1), 1, func(msg *nats.Msg) {
		handled <- msg.Subject
		if msg.Subject == "first" {
			runtime.Goexit()
		}
	})
	for _, subject := range []string{"first", "second"} {
		p.start(&nats.Msg{Subject: subject})
		require.Equal(t, subject, <-handled)
		<-p.freed
	}
	close(p.work)
	p.handlers.Wait()
}
