package embedded_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/moorebus/moorebus/pkg/embedded"
)

// A server for this process alone. Options.Listen lets others in.
func ExampleStart() {
	dir, err := os.MkdirTemp("", "moorebus-")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	server, err := embedded.Start(context.Background(), embedded.Options{Dir: dir, SyncAlways: true})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Shutdown()
	conn, err := server.Connect()
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	fmt.Println(conn.Status())
	// Output: CONNECTED
}
