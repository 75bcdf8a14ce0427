package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

// bareApartRate is how many transitions per second the bare loop makes where each
// state has its own process: this program, run again. As with the roles, this
// process has the server, starts the runs and watches for their ends.
func bareApartRate(ctx context.Context, t terms, h hops, runs int) (rate float64, err error) {
	t.tcp = true
	n, err := startNode(ctx, t)
	if err != nil {
		return 0, err
	}
	defer n.close()
	f, err := newFloor(n.conn, t, h)
	if err != nil {
		return 0, err
	}
	defer f.stop()
	if err := f.create(ctx); err != nil {
		return 0, err
	}
	if _, err := n.conn.Subscribe("floorfeed.floor.*.default.*.done.>", func(*nats.Msg) { f.ended() }); err != nil {
		return 0, err
	}
	processes, err := startBareStates(n, t, h)
	defer func() {
		for _, p := range processes {
			err = errors.Join(err, p.end())
		}
	}()
	if err != nil {
		return 0, err
	}
	if err := f.awaitPulls(ctx, processes); err != nil {
		return 0, err
	}
	if err := f.carry(ctx, 0, warmUp); err != nil {
		return 0, err
	}
	did, err := meter(func() error { return f.carry(ctx, warmUp, runs) })
	return did.perSecond(runs * len(h)), err
}

// bareState is what a process of one state is told.
type bareState struct {
	URL, State    string
	Bodies        hops
	Shards, Slots int
	Group         bool
}

// startBareStates starts a process for each state. It returns those that it started,
// also with an error.
func startBareStates(n *node, t terms, h hops) (all []*process, err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	t = t.withDefaults()
	for _, state := range floorStates {
		text, err := json.Marshal(bareState{URL: n.server.ClientURL(), State: state, Bodies: h, Shards: t.shards, Slots: t.slots, Group: t.group})
		if err != nil {
			return all, err
		}
		told := filepath.Join(n.dir, state+".json")
		if err := os.WriteFile(told, text, 0o600); err != nil {
			return all, err
		}
		p, err := startProcess(filepath.Dir(program), n.dir, filepath.Base(program), state, []string{bareCommand, told}, nil)
		if err != nil {
			return all, err
		}
		all = append(all, p)
	}
	return all, nil
}

// awaitPulls waits until every state's process asks for deliveries.
func (f *floor) awaitPulls(ctx context.Context, processes []*process) error {
	js, err := jetstream.New(f.conn)
	if err != nil {
		return err
	}
	for i, p := range processes {
		var failed error
		err := p.await(ctx, "there", func() bool {
			for shard := range f.terms.shards {
				name, _ := floorStream(shard)
				consumer, err := js.Consumer(ctx, name, floorStates[i])
				if failed = err; err != nil {
					return true
				}
				if consumer.CachedInfo().NumWaiting == 0 {
					return false
				}
			}
			return true
		})
		if err := errors.Join(err, failed); err != nil {
			return err
		}
	}
	return nil
}

// bareCommand is the command of a process of one state, which nobody else calls.
const bareCommand = "bare-state"

func bareStateCommand() *cobra.Command {
	return &cobra.Command{
		Use: bareCommand + " FILE", Hidden: true, Args: cobra.ExactArgs(1),
		Short: "Answer what the bare loop delivers of one state, until the process is asked to end",
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			var told bareState
			if err := json.Unmarshal(text, &told); err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return told.run(cmd.Context())
		},
	}
}

// run answers deliveries until ctx ends. An append that fails ends it with the
// reason.
func (b *bareState) run(ctx context.Context) error {
	conn, err := nats.Connect(b.URL, nats.Timeout(readyTime))
	if err != nil {
		return err
	}
	defer conn.Close()
	f, err := newFloor(conn, terms{shards: b.Shards, slots: b.Slots, group: b.Group}, b.Bodies)
	if err != nil {
		return err
	}
	defer f.stop()
	if err := f.consume(b.State); err != nil {
		return err
	}
	for {
		select {
		case <-f.done: // the feed tells who carries the runs
		case err := <-f.failed:
			return err
		case <-ctx.Done():
			return nil
		case <-time.After(noteEvery):
			f.takeStored() // nobody else asks for them
		}
	}
}

// noteEvery is how often a process forgets what it has noted for nobody.
const noteEvery = time.Second
