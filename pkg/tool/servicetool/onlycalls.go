package servicetool

import (
	"strings"

	"github.com/nats-io/nats.go/micro"

	"github.com/moorebus/moorebus/internal/natsbus/api"
)

// OnlyCalls returns a handler for a service's endpoint that passes requests of actors to h, and
// drops all others without an answer. Actors wait for answers below _SERVICES. A request with
// another reply subject, or none, is not a call: anyone who may read a stream can make the
// server deliver a stored message on the endpoint's subject. The accounts of the generated
// permissions keep such messages from services, too.
func OnlyCalls(h micro.Handler) micro.Handler {
	return micro.HandlerFunc(func(r micro.Request) {
		if strings.HasPrefix(r.Reply(), api.ServiceReplies) {
			h.Handle(r)
		}
	})
}
