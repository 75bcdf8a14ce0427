package cli

import (
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
)

// moorebus is the name under which texts call the command, and its package.
const moorebus, moorebusPackage = "moorebus", "github.com/moorebus/moorebus/cmd/moorebus"

// self is how this process was started.
var self = func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Path != moorebusPackage {
		return moorebus // another program, such as planner, which means the command of that name
	}
	executable, _ := os.Executable()
	_, err := os.Stat(filepath.Join("cmd", moorebus))
	found, _ := exec.LookPath(filepath.Base(os.Args[0]))
	return startedAs(os.Args[0], executable, found, err == nil)
}()

// ranByGo matches the folders in which `go run` keeps executables: one for a single run, or
// one in the build cache.
var ranByGo = regexp.MustCompile(`^(exe|[0-9a-f]{64}-d)$`)

// startedAs returns the command line by which the same executable starts again. found is what
// its bare name starts.
func startedAs(arg, executable, found string, inModule bool) string {
	switch {
	case ranByGo.MatchString(filepath.Base(filepath.Dir(executable))) && inModule:
		return "go run ./cmd/" + moorebus
	case ranByGo.MatchString(filepath.Base(filepath.Dir(executable))):
		return "go run " + moorebusPackage
	case arg == "":
		return moorebus
	case found != "" && found == executable:
		return filepath.Base(arg)
	}
	return ShellWord(arg)
}

// Self returns the moorebus command as this process was started, for commands that people are
// to paste: moorebus, ./bin/moorebus, or go run ./cmd/moorebus. In another program it is
// moorebus.
func Self() string { return self }

// AsStarted returns a message with [Self] in its commands, which are in backquotes.
func AsStarted(message string) string {
	return strings.ReplaceAll(message, "`"+moorebus+" ", "`"+self+" ")
}

// Person returns the name of this process's user, for the log of a run: from the environment, else
// from the system, else the user id.
func Person(getenv func(string) string) string {
	for _, name := range []string{"USER", "LOGNAME", "USERNAME"} {
		if who := getenv(name); who != "" {
			return who
		}
	}
	if who, err := user.Current(); err == nil && who.Username != "" {
		return who.Username
	}
	return "uid " + strconv.Itoa(os.Getuid())
}
