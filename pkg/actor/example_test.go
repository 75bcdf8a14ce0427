package actor_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/pkg/actor"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

// must is for what the example is not about.
func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

// An actor serves the pool "gpu" on a bus. An agent elsewhere on that bus names its tool.
func ExampleRun() {
	ctx, stop := context.WithCancel(context.Background())
	dir := must(os.MkdirTemp("", "moorebus-"))
	defer func() { _ = os.RemoveAll(dir) }()
	server := must(embedded.Start(ctx, embedded.Options{Dir: dir}))
	defer server.Shutdown()
	conn := must(server.Connect())
	defer conn.Close()
	if err := natsbus.Init(ctx, conn, natsbus.InitOptions{Pools: []string{"gpu"}}); err != nil {
		log.Fatal(err)
	}
	bus := must(natsbus.Open(ctx, conn, natsbus.Options{}))

	draw := must(typed.New(tool.Definition{Name: "draw", Effect: tool.Pure, Pool: "gpu"}, func(_ context.Context, in struct {
		Of string `json:"of"`
	}) (string, error) {
		return "(" + in.Of + ")", nil
	}))
	ended := make(chan error, 1)
	go func() {
		ended <- actor.Run(ctx, actor.Options{Bus: bus, Instance: "painter", Tools: []tool.Tool{draw}})
	}()

	a := must(agent.New("painter").RemoteTools("gpu/draw").Bus(bus).
		LLM(scripted.NewMock(scripted.Ask("draw", `{"of":"cat"}`), scripted.Say("Here is a cat."))).Build())
	for len(must(actor.Tools(ctx, bus))) == 0 { // until the actor has announced its tool
	}
	run := must(a.Start(ctx, agent.Task("Draw a cat.")))
	fmt.Println(run.Wait(ctx))
	fmt.Println(run.Memory().History[0].Observation)
	_ = run.Release()
	stop()
	fmt.Println(<-ended)
	// Output:
	// Here is a cat. <nil>
	// SUCCESS: (cat)
	// <nil>
}
