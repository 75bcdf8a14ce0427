package confine

import (
	"fmt"
	"unsafe"

	policy "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// refused are system calls that no command needs and that lead out of a sandbox, or to parts of the
// kernel that have often had faults. The list follows what Docker's default profile leaves out.
var refused = []string{
	"acct", "add_key", "bpf", "clock_adjtime", "clock_settime", "delete_module", "fanotify_init", "finit_module", "fsconfig", "fsmount", "fsopen",
	"fspick", "init_module", "io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl", "kcmp", "kexec_file_load", "kexec_load",
	"keyctl", "lookup_dcookie", "mount", "mount_setattr", "move_mount", "nfsservctl", "open_by_handle_at", "open_tree", "perf_event_open",
	"pidfd_getfd", "pivot_root", "process_vm_readv", "process_vm_writev", "ptrace", "quotactl", "quotactl_fd", "reboot", "request_key", "setdomainname",
	"sethostname", "setns", "settimeofday", "swapoff", "swapon", "syslog", "umount2", "unshare", "uselib", "userfaultfd", "vhangup", "vmsplice",
}

// newNamespaces are the flags of clone that make namespaces.
var newNamespaces = []uint64{unix.CLONE_NEWCGROUP, unix.CLONE_NEWIPC, unix.CLONE_NEWNET, unix.CLONE_NEWNS, unix.CLONE_NEWPID, unix.CLONE_NEWUSER, unix.CLONE_NEWUTS}

// others are calls that change limits and priorities of any process of the same user, with the argument
// that is own if they mean the caller.
var others = []struct {
	call     string
	argument uint32
	own      uint64
}{
	{"prlimit64", 0, 0}, {"setpriority", 0, unix.PRIO_PROCESS}, {"setpriority", 1, 0}, {"ioprio_set", 0, ioprioProcess}, {"ioprio_set", 1, 0},
	{"sched_setscheduler", 0, 0}, {"sched_setparam", 0, 0}, {"sched_setattr", 0, 0},
}

// ioprioProcess is IOPRIO_WHO_PROCESS of Linux.
const ioprioProcess = 1

// typing are the requests by which a program types for the user of a terminal.
var typing = []uint32{unix.TIOCSTI, unix.TIOCLINUX}

// Where seccomp's data has the number of the call, the architecture, and the lower half of the
// second argument.
const numberAt, archAt, secondAt = 0, 4, 24

// Refuse refuses this thread, and what it starts, system calls that no command needs, new namespaces,
// to type for the user of a terminal, and sockets: of all families if sockets is false, else of
// unusual ones. The thread must be locked to its goroutine and have given up new privileges. A family beside IP, local sockets and netlink may lead around a network namespace,
// as that of virtual machines does.
func Refuse(sockets bool) error {
	info, err := arch.GetInfo("")
	if err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	rules, err := policyFor(info, sockets).Assemble()
	if err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	raw, err := bpf.Assemble(append(before(info), rules...))
	if err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	program := make([]unix.SockFilter, len(raw))
	for i, in := range raw {
		program[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	err = unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})), 0, 0)
	if err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	return nil
}

// answer makes a system call fail with an error.
func answer(code unix.Errno) policy.Action { return policy.ActionErrno | policy.Action(code) }

// before is what is looked at before the policy, which can do neither: calls of another
// architecture, whose numbers differ, and the lower half of an argument. The kernel ignores the
// upper one.
func before(info *arch.Info) []bpf.Instruction {
	refuse := bpf.RetConstant{Val: uint32(answer(unix.EPERM))}
	rules := []bpf.Instruction{
		bpf.LoadAbsolute{Off: archAt, Size: 4}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(info.ID), SkipTrue: 1}, refuse,
		bpf.LoadAbsolute{Off: numberAt, Size: 4}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(unix.SYS_IOCTL), SkipTrue: uint8(1 + 2*len(typing))},
		bpf.LoadAbsolute{Off: secondAt, Size: 4},
	}
	for _, request := range typing {
		rules = append(rules, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: request, SkipTrue: 1}, refuse)
	}
	return rules
}

func policyFor(info *arch.Info, sockets bool) *policy.Policy {
	known := func(names ...string) (there []string) {
		for _, name := range names {
			if _, is := info.SyscallNames[name]; is {
				there = append(there, name)
			}
		}
		return there
	}
	denied := policy.SyscallGroup{Names: known(refused...), Action: answer(unix.EPERM)}
	for _, flag := range newNamespaces {
		denied.NamesWithCondtions = append(denied.NamesWithCondtions, policy.NameWithConditions{
			Name: "clone", Conditions: []policy.Condition{{Argument: 0, Operation: policy.BitsSet, Value: flag}},
		})
	}
	for _, other := range others {
		denied.NamesWithCondtions = append(denied.NamesWithCondtions, policy.NameWithConditions{
			Name: other.call, Conditions: []policy.Condition{{Argument: other.argument, Operation: policy.NotEqual, Value: other.own}},
		})
	}
	if sockets {
		var unusual policy.ArgumentConditions
		for _, family := range []uint64{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK} {
			unusual = append(unusual, policy.Condition{Argument: 0, Operation: policy.NotEqual, Value: family})
		}
		denied.NamesWithCondtions = append(denied.NamesWithCondtions, policy.NameWithConditions{Name: "socket", Conditions: unusual})
	} else {
		denied.Names = append(denied.Names, "socket")
	}
	// The flags of clone3 lie where a filter cannot look. Libraries then use clone.
	unknown := policy.SyscallGroup{Names: known("clone3"), Action: answer(unix.ENOSYS)}
	return &policy.Policy{DefaultAction: policy.ActionAllow, Syscalls: []policy.SyscallGroup{denied, unknown}}
}
