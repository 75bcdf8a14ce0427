// Command peers carries agent-10 with other systems, for the script beside it:
//
//	peers dbos DATABASE-URL     in this process, with DBOS on that database
//	peers restate ADDRESS       serves the handler that Restate calls there, until it is ended
//	peers load URL              over HTTP: each POST starts a run and is answered at its end
//
// The environment has RUNS, AT_ONCE and WARM_UP. It prints the runs per second.
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
)

const (
	steps  = 10
	answer = "All steps are done: 210."
	// limit bounds everything.
	limit = 2 * time.Minute
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 2 && args[0] == "restate" {
		return serveRestate(context.Background(), args[1])
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	switch {
	case len(args) == 2 && args[0] == "dbos":
		return withDBOS(ctx, args[1])
	case len(args) == 2 && args[0] == "load":
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}
		return measure(func() error { return post(ctx, client, args[1]) })
	}
	return fmt.Errorf("usage: peers dbos DATABASE-URL | peers restate ADDRESS | peers load URL")
}

// measure carries runs to get warm, then those that count.
func measure(one func() error) error {
	var numbers [3]int
	for i, name := range []string{"RUNS", "AT_ONCE", "WARM_UP"} {
		var err error
		if numbers[i], err = strconv.Atoi(os.Getenv(name)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	runs, atOnce, warmUp := numbers[0], numbers[1], numbers[2]
	if err := carry(warmUp, atOnce, one); err != nil {
		return err
	}
	began := time.Now()
	if err := carry(runs, atOnce, one); err != nil {
		return err
	}
	fmt.Printf("%.1f\n", float64(runs)/time.Since(began).Seconds())
	return nil
}

// carry keeps so many runs in progress until all have ended.
func carry(runs, atOnce int, one func() error) error {
	next := make(chan struct{}, runs)
	for range runs {
		next <- struct{}{}
	}
	close(next)
	failed := make(chan error, atOnce)
	var clients sync.WaitGroup
	for range atOnce {
		clients.Go(func() {
			for range next {
				if err := one(); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	clients.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// post starts a run and waits for its answer.
func post(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`"Do the steps."`))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err == nil && (response.StatusCode != http.StatusOK || !strings.Contains(string(text), answer)) {
		err = fmt.Errorf("HTTP %d: %s", response.StatusCode, text)
	}
	return err
}

// reply is what the model says: a call, or the answer.
type reply struct{ Expression, Text string }

func model(results []string) reply {
	if len(results) < steps {
		return reply{Expression: fmt.Sprintf("%d * (17 + 4)", len(results)+1)}
	}
	return reply{Text: fmt.Sprintf("All steps are done: %s.", results[len(results)-1])}
}

func calculator(expression string) (string, error) {
	factor, _, _ := strings.Cut(expression, " ")
	n, err := strconv.Atoi(factor)
	return strconv.Itoa(n * (17 + 4)), err
}

// agent is the workflow: each reply and each result is a durable step.
func agent(ctx dbos.Context, _ string) (string, error) {
	var results []string
	for {
		r, err := dbos.RunAsStep(ctx, func(context.Context) (reply, error) { return model(results), nil }, dbos.WithStepName("model"))
		if err != nil || r.Text != "" {
			return r.Text, err
		}
		result, err := dbos.RunAsStep(ctx, func(context.Context) (string, error) { return calculator(r.Expression) }, dbos.WithStepName("tool"))
		if err != nil {
			return "", err
		}
		results = append(results, result)
	}
}

func withDBOS(ctx context.Context, url string) error {
	d, err := dbos.NewContext(ctx, dbos.Config{AppName: "peers", DatabaseURL: url})
	if err != nil {
		return err
	}
	dbos.RegisterWorkflow(d, agent)
	if err := dbos.Launch(d); err != nil {
		return err
	}
	defer dbos.Shutdown(d, 5*time.Second)
	return measure(func() error {
		handle, err := dbos.RunWorkflow(d, agent, "Do the steps.")
		if err != nil {
			return err
		}
		text, err := handle.GetResult()
		if err == nil && text != answer {
			err = fmt.Errorf("the run ended with %q", text)
		}
		return err
	})
}
