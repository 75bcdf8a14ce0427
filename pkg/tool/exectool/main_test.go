package exectool

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
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

// commands are more of them.
var commands = map[string]func() int{}

// command is what the test binary does as a command.
func command(mode string) int {
	if more, is := commands[mode]; is {
		return more()
	}
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
		return parent(true, nil)
	case "leaver":
		return parent(false, nil)
	case "sessions":
		return parent(false, &syscall.SysProcAttr{Setsid: true})
	case "spawner":
		return parent(true, &syscall.SysProcAttr{Setsid: true})
	}
	return 0
}

// hang locks the file named by MARK, writes to it, and ignores what it can.
func hang() int {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	file, err := os.OpenFile(os.Getenv("MARK"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil || syscall.Flock(int(file.Fd()), syscall.LOCK_SH) != nil {
		return 1
	}
	_, _ = file.WriteString("hanging\n")
	never := make(chan os.Signal, 1)
	signal.Notify(never, syscall.SIGUSR1)
	<-never
	return 0
}

// parent starts a child that hangs with the same standard output, and waits for
// it or leaves at once.
func parent(wait bool, attr *syscall.SysProcAttr) int {
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), modeEnv+"=hang")
	child.Stdout, child.Stderr, child.SysProcAttr = os.Stdout, os.Stderr, attr
	if err := child.Start(); err != nil {
		return 1
	}
	for name := os.Getenv("MARK"); ; { // so that there is something to kill
		if content, err := os.ReadFile(name); err != nil || len(content) > 0 {
			break
		}
		runtime.Gosched()
	}
	fmt.Print("started")
	if wait {
		_ = child.Wait()
	}
	return 0
}
