// Command services is a NATS service with two tools. Its endpoints are tools because of their
// metadata, and they accept requests from actors only. Start several: they share the calls.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/moorebus/moorebus/pkg/tool/servicetool"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "services:", err)
		os.Exit(1)
	}
}

const schema = `{"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}`

func run() error {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, os.Interrupt, syscall.SIGTERM)
	conn, err := nats.Connect(os.Getenv("NATS_URL"), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1))
	if err != nil {
		return err
	}
	defer conn.Close()
	service, err := micro.AddService(conn, micro.Config{Name: "text", Version: "1.0.0", Description: "Works on text."})
	if err != nil {
		return err
	}
	endpoints := service.AddGroup("text") // the subjects are text.count_words and text.publish
	err = endpoints.AddEndpoint("count_words", servicetool.OnlyCalls(micro.HandlerFunc(countWords)), micro.WithEndpointMetadata(map[string]string{
		"moorebus.tool": "count_words", "moorebus.description": "Counts the words of a text.", "moorebus.schema": schema,
		"moorebus.effect": "pure",
	}))
	if err != nil {
		return err
	}
	err = endpoints.AddEndpoint("publish", servicetool.OnlyCalls(micro.HandlerFunc(publish)), micro.WithEndpointMetadata(map[string]string{
		"moorebus.tool": "publish", "moorebus.description": "Publishes a text.", "moorebus.schema": schema,
		"moorebus.effect": "once", "moorebus.risk": "medium", "moorebus.timeout": "10s",
	}))
	if err != nil {
		return err
	}
	fmt.Println("serving text.count_words and text.publish")
	<-ended
	return service.Stop() // requests in flight are answered
}

// arguments reads the request, and answers it with an error if it cannot be read.
func arguments(r micro.Request) (text string, ok bool) {
	var in struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(r.Data(), &in); err != nil {
		_ = r.Error("400", err.Error(), nil) // nobody waits if this fails
		return "", false
	}
	return in.Text, true
}

func countWords(r micro.Request) {
	if text, ok := arguments(r); ok {
		_ = r.Respond([]byte(strconv.Itoa(len(strings.Fields(text)))))
	}
}

// publish would not publish a text again whose key it has seen.
func publish(r micro.Request) {
	text, ok := arguments(r)
	switch {
	case !ok:
	case text == "":
		_ = r.Error("EMPTY", "there is no text to publish", nil)
	default:
		_ = r.Respond([]byte("published as " + r.Headers().Get("Idempotency-Key")))
	}
}
