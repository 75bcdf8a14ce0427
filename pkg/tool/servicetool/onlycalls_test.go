package servicetool_test

import (
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/tool/servicetool"
)

// TestOnlyCalls: a guarded endpoint takes the calls of actors, and nothing that the server
// delivers there because somebody named its subject as the reply subject of a question.
func TestOnlyCalls(t *testing.T) {
	b := newBus(t, func(o *server.Options) { o.JetStream, o.StoreDir = true, t.TempDir() })
	conn, s := b.Conn, b.service("bank", "1.0.0")
	taken := make(chan string, 100)
	handle := micro.HandlerFunc(func(r micro.Request) {
		taken <- string(r.Data())
		_ = r.Respond(nil)
	})
	require.NoError(t, s.AddEndpoint("pay", servicetool.OnlyCalls(handle), micro.WithEndpointMetadata(named("pay"))))
	require.NoError(t, s.AddEndpoint("open", handle))

	js, err := conn.JetStream()
	require.NoError(t, err)
	_, err = js.AddStream(&nats.StreamConfig{Name: "S", Subjects: []string{"s"}, AllowDirect: true, Storage: nats.MemoryStorage})
	require.NoError(t, err)
	_, err = js.AddConsumer("S", &nats.ConsumerConfig{Durable: "c", AckPolicy: nats.AckExplicitPolicy})
	require.NoError(t, err)
	_, err = js.Publish("s", []byte("stored"))
	require.NoError(t, err)
	for _, endpoint := range []string{"pay", "open"} {
		for subject, body := range map[string]string{
			"$JS.API.DIRECT.GET.S": `{"last_by_subj":"s"}`, "$JS.API.STREAM.MSG.GET.S": `{"last_by_subj":"s"}`, "$SRV.INFO": "",
			"$JS.API.CONSUMER.MSG.NEXT.S.c": `{"batch":1,"no_wait":true}`, "$JS.API.STREAM.INFO.S": "",
		} {
			require.NoError(t, conn.PublishMsg(&nats.Msg{Subject: subject, Reply: endpoint, Data: []byte(body)}))
			if endpoint == "open" {
				<-taken
			}
		}
		require.NoError(t, conn.Publish(endpoint, nil))
	}
	<-taken
	require.Empty(t, taken, "what was sent to the guarded endpoint")

	tools := b.rig(servicetool.Options{All: true})
	tools.await("pay", nil)
	require.Nil(t, tools.call("pay", `{"amount":1}`).Failure)
	require.Equal(t, `{"amount":1}`, <-taken)
}
