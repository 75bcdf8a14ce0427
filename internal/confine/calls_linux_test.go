package confine

import (
	"encoding/binary"
	"testing"

	policy "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Calls by the numbers of another architecture are refused, whatever they are.
func TestOtherArchitectures(t *testing.T) {
	info, err := arch.GetInfo("")
	require.NoError(t, err)
	rules, err := policyFor(info, true).Assemble()
	require.NoError(t, err)
	machine, err := bpf.NewVM(append(before(info), rules...))
	require.NoError(t, err)
	answerTo := func(id arch.AuditArch, number int, second uint32) policy.Action {
		data := make([]byte, 64)
		for at, value := range map[int]uint32{numberAt: uint32(number), archAt: uint32(id), secondAt: second, secondAt + 4: 0xffffffff} {
			binary.BigEndian.PutUint32(data[at:], value) // the machine reads what the kernel has as numbers
		}
		got, err := machine.Run(data)
		require.NoError(t, err)
		return policy.Action(uint32(got))
	}
	other := arch.I386.ID
	if info.ID == other {
		other = arch.X86_64.ID
	}
	require.Equal(t, policy.ActionAllow, answerTo(info.ID, info.SyscallNames["getpid"], 0))
	require.Equal(t, answer(unix.EPERM), answerTo(other, info.SyscallNames["getpid"], 0))
	require.Equal(t, answer(unix.EPERM), answerTo(info.ID, info.SyscallNames["mount"], 0))
	require.Equal(t, answer(unix.ENOSYS), answerTo(info.ID, info.SyscallNames["clone3"], 0))
	require.Equal(t, answer(unix.EPERM), answerTo(info.ID, info.SyscallNames["ioctl"], unix.TIOCSTI), "also with a noisy upper half")
	require.Equal(t, policy.ActionAllow, answerTo(info.ID, info.SyscallNames["ioctl"], unix.TIOCGWINSZ))
}
