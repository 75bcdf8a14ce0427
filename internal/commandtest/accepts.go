package commandtest

import (
	"fmt"
	"os/exec"
)

// Accepts returns an error unless a program of this module knows the command and every flag in args,
// and takes their values. It does not run the command: files need not exist. args may be those of a
// unit, a container or a manual.
func Accepts(program string, args ...string) error {
	out, err := exec.Command(program, append(args, "--version")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %q: %w\n%s", program, args, err, out)
	}
	return nil
}
