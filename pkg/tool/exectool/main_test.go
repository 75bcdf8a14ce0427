package exectool

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// modeEnv makes this test binary a command: the tools under test run it.
const modeEnv = "EXECTOOL_TEST_MODE"

// fastExit spares the second that a race-enabled binary waits when it ends.
const fastExit = "GORACE=atexit_sleep_ms=0"

func TestMain(m *testing.M) {
	if mode := os.Getenv(modeEnv); mode != "" {
		os.Exit(command(mode))
	}
	goleak.VerifyTestMain(m)
}

// command is what the test binary does as a command.
func command(mode string) int {
	switch mode {
	case "echo":
		_, _ = io.Copy(os.Stdout, os.Stdin)
	case "key":
		fmt.Print(os.Getenv("MOOREBUS_IDEMPOTENCY_KEY"))
	case "env":
		fmt.Print(strings.Join(os.Environ(), "\n"))
	case "dir":
		dir, _ := os.Getwd()
		fmt.Print(dir)
	case "fail":
		fmt.Fprint(os.Stderr, "no such \xffcity\n")
		return 3
	case "fail-stdout":
		fmt.Print("said on stdout")
		return 4
	case "fail-long":
		fmt.Fprint(os.Stderr, strings.Repeat("a", 1<<20), "the end")
		return 1
	case "signal":
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
		select {}
	case "big":
		w := bufio.NewWriter(os.Stdout)
		_, _ = w.WriteString(strings.Repeat("0123456789", 500_000))
		_ = w.Flush()
	case "deaf":
		_ = os.Stdin.Close()
		fmt.Print("did not listen")
	case "hang":
		return hang()
	case "parent":
		return parent(true)
	case "leaver":
		return parent(false)
	}
	return 0
}

// hang writes its own id into the file named by PIDFILE and ignores what it can.
func hang() int {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	file, err := os.OpenFile(os.Getenv("PIDFILE"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return 1
	}
	_, _ = file.WriteString(strconv.Itoa(os.Getpid()) + "\n")
	select {}
}

// parent starts a child that hangs with the same standard output, and waits for
// it or leaves at once.
func parent(wait bool) int {
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), modeEnv+"=hang")
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	if err := child.Start(); err != nil {
		return 1
	}
	fmt.Print("started")
	if wait {
		_ = child.Wait()
	}
	return 0
}
