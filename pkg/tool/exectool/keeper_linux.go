package exectool

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/moorebus/moorebus/internal/conceal"
	"github.com/moorebus/moorebus/internal/confine"
	"golang.org/x/sys/unix"
)

// The keeper is this program, started again under another name. It becomes the
// subreaper of everything that the command starts, limits itself, starts the
// command, waits for its end, kills what is left, and reports. Where the kernel
// lets it, it is started in its own namespaces: its end is then the end of everything in them.

// init makes a process that was started as a keeper one, before anything of the
// program itself runs.
func init() {
	args := os.Args
	if len(args) > 1 && strings.HasPrefix(args[0], openFiles) {
		args = args[1:]
	}
	if len(args) > 0 && args[0] == keeperName {
		// Not os.Exit: a keeper has nothing to wait for.
		syscall.Exit(keep(args))
	}
}

const (
	maxFileSize  = 1 << 30
	maxOpenFiles = 4096
	maxProcesses = 1024
)

// sweepTime is how long what a command left behind may take to die.
const sweepTime = time.Second

// keep is the entire life of a keeper.
func keep(args []string) int {
	words := os.NewFile(3, "report")
	if err := conceal.Files(); err != nil {
		return say(words, failed(err, &order{}))
	}
	o, err := orderOf(args)
	if err != nil {
		return say(words, failed(err, &order{}))
	}
	if err := json.NewEncoder(words).Encode(report{}); err != nil {
		return 1
	}
	if o.Waits {
		if n, err := os.NewFile(4, "gate").Read(make([]byte, 2)); n == 0 {
			return say(words, failed(fmt.Errorf("the user namespace of its sandbox was not made: %w", err), &o))
		}
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		o.lacks("the end of processes that leave their group", err)
	}
	if o.Inside {
		o.enter()
	}
	return o.run(words, stop)
}

func say(words *os.File, r report) int {
	r.Ended = true
	if err := json.NewEncoder(words).Encode(r); err != nil || r.Error != "" || r.Wait != 0 {
		return 1
	}
	return 0
}

func (o *order) lacks(what string, err error) {
	o.Missing = append(o.Missing, what+" ("+err.Error()+")")
}

// enter makes use of the namespaces.
func (o *order) enter() {
	o.holds()
	if o.By == Bwrap {
		o.Held = append(o.Held, holdsView)
		o.Grants.Hide = nil
		return
	}
	if !o.Network {
		if err := loopback(); err != nil {
			o.lacks("a loopback interface", err)
		}
	}
	if err := ownView(o.Grants); err != nil {
		o.lacks("a view of the file system of its own", err)
		return
	}
	o.Held = append(o.Held, holdsView)
	o.Grants.Hide = nil // it is hidden now
}

// holds notes the namespaces of the command.
func (o *order) holds() {
	if o.By != "" {
		o.Held = append(o.Held, string(o.By))
	}
	o.Held = append(o.Held, holdsProcesses, holdsIPC)
	if !o.Network {
		o.Held = append(o.Held, holdsNetwork)
	}
}

// run starts the command, waits for its end or a signal, and kills what is left.
func (o order) run(words *os.File, stop <-chan os.Signal) int {
	defer func() { _ = os.RemoveAll(o.Bundle) }() // the actor may be gone
	if o.By != Runsc {                            // it limits the command, and needs more itself
		o.limit()
	}
	if o.Bound {
		threads()
	}
	pid, err := o.start()
	if err != nil {
		return say(words, failed(err, &o))
	}
	ended, nobody := make(chan syscall.WaitStatus, 1), make(chan struct{})
	go reap(pid, ended, nobody)
	var status syscall.WaitStatus
	stopped := false
	select {
	case status = <-ended:
	case <-stop:
		stopped = true
	}
	if !o.Inside { // the end of the namespace's first process kills the others
		sweep(nobody)
	}
	_ = os.RemoveAll(o.Grants.Temp) // the actor may be gone
	if stopped {
		return 1
	}
	return say(words, report{Log: logOf(o.Bundle), Wait: uint32(status), Held: o.Held, Missing: o.Missing, Unbounded: o.Unbounded})
}

// limit sets the bounds that hold for each process of the command.
func (o *order) limit() {
	bound := func(what string, resource int, most uint64) {
		var now unix.Rlimit
		err := unix.Getrlimit(resource, &now)
		if err == nil {
			most = min(most, now.Max)
			err = unix.Setrlimit(resource, &unix.Rlimit{Cur: most, Max: most})
		}
		if err != nil {
			o.lacks(what, err)
		}
	}
	bound("no core dumps", unix.RLIMIT_CORE, 0)
	bound("a bound on the size of files", unix.RLIMIT_FSIZE, maxFileSize)
	bound("a bound on open files", unix.RLIMIT_NOFILE, maxOpenFiles)
	if o.Inside && os.Geteuid() != 0 {
		// In a user namespace the command's processes alone count.
		bound("a bound on processes", unix.RLIMIT_NPROC, maxProcesses)
	}
}

// start starts the command on a thread that can write and gain nothing. The thread
// is not the keeper's first one, so the command may not even signal the keeper.
func (o *order) start() (pid int, err error) {
	if o.Bound {
		defer soonest()()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends here
		if o.By == Runsc {
			o.holds()
			o.Held = append(o.Held, holdsView)
			if err = o.check(); err == nil {
				pid, err = o.fork()
			}
			return
		}
		_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) // older kernels have none
		if err := dropCapabilities(); err != nil && o.By != Bwrap {                 // which has dropped all
			o.lacks("a root without power over the system", err)
		}
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			o.lacks("no new privileges", err)
		}
		if err = o.restrict(); err != nil {
			return
		}
		pid, err = o.fork()
	}()
	<-done
	return pid, err
}

// fork starts the command.
func (o *order) fork() (pid int, err error) {
	return syscall.ForkExec(o.Path, o.Args, &syscall.ProcAttr{
		Dir: o.Grants.Dir, Env: os.Environ(), Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{Setpgid: o.Inside}, // else the actor ends it with the keeper's group
	})
}

// soonest has the kernel end what this process starts before others for want of memory, until it is
// undone. The keeper has its bound with the command, and is to say what became of that.
func soonest() (undo func()) {
	const badness = "/proc/self/oom_score_adj"
	before, err := os.ReadFile(badness)
	if err != nil || os.WriteFile(badness, []byte("1000"), 0) != nil {
		return func() {} // then the keeper may end first, and the outcome is not known
	}
	return func() { _ = os.WriteFile(badness, before, 0) } // it was that
}

// threads starts threads that the keeper may need later, when the command has used up its processes.
func threads() {
	var all, ready sync.WaitGroup
	for range 8 {
		all.Add(1)
		ready.Add(1)
		go func() {
			defer all.Done()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready.Done()
			ready.Wait()
		}()
	}
	all.Wait()
}

// restrict takes from this thread, and what it starts, what a command does not need. The error says
// that something does not hold that the tool's settings require.
func (o *order) restrict() error {
	g := o.Grants
	write := append(slices.Clone(g.Write), g.Temp)
	if slices.Contains(o.Held, holdsView) {
		write = append(write, shared()...)
	}
	held, err := confine.Restrict(confine.Rules{
		System: without(readable, g.Hide), Read: without(g.Read, g.Hide), Write: without(write, g.Hide), Devices: devices, TCP: o.Network,
	})
	if held {
		o.Held = append(o.Held, holdsFiles)
	}
	if err != nil {
		o.lacks("files, TCP, signals and sockets of its own alone", err)
	}
	if err := confine.Refuse(o.Network || slices.Contains(o.Held, holdsNetwork)); err != nil {
		o.lacks("system calls that lead out of the sandbox are refused", err)
	} else {
		o.Held = append(o.Held, holdsCalls)
	}
	return o.check()
}

// check reports what the tool's settings require and does not hold.
func (o *order) check() error {
	// A command that may write everywhere could lift its bound.
	if o.Bound && (slices.Contains(o.Held, holdsFiles) || slices.Contains(o.Held, holdsView)) {
		o.Held = append(o.Held, holdsBounds)
	}
	for _, name := range o.Require {
		if !slices.Contains(o.Held, name) {
			return fmt.Errorf("the tool requires %s, which its sandbox does not have here: it has %v, and lacks %s", name, o.Held, strings.Join(append(o.Missing, o.Unbounded), ", "))
		}
	}
	return nil
}

// rootKeeps are the capabilities of root in a sandbox: over files, users and ports.
// Of the others some would read the memory of processes outside.
var rootKeeps = []uintptr{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL, unix.CAP_SETGID, unix.CAP_SETUID,
	unix.CAP_NET_BIND_SERVICE, unix.CAP_NET_RAW,
}

// dropCapabilities takes from what this thread starts all others. Who is not root
// has none to begin with.
func dropCapabilities() error {
	if os.Geteuid() != 0 {
		return nil
	}
	for c := range uintptr(unix.CAP_LAST_CAP + 1) {
		if slices.Contains(rootKeeps, c) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && err != unix.EINVAL { // older kernels have fewer
			return err
		}
	}
	return nil
}

// reap waits for all children: those that the command leaves behind become the
// keeper's. It says how the command ended, and that nobody is left.
func reap(command int, ended chan<- syscall.WaitStatus, nobody chan<- struct{}) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			close(nobody)
			return
		case pid == command:
			ended <- status
		}
	}
}

// sweep kills the keeper's children until there are none. The children of those
// that die become the keeper's own.
func sweep(nobody <-chan struct{}) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < sweepTime; {
		threads, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is valid
		for _, file := range threads {
			pids, _ := os.ReadFile(file) // a thread that has ended has none
			for _, text := range strings.Fields(string(pids)) {
				if pid, err := strconv.Atoi(text); err == nil {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		}
		select {
		case <-nobody:
			return
		case <-tick.C:
		}
	}
}
