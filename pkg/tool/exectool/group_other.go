//go:build !unix

package exectool

import (
	"io"
	"os"
	"os/exec"
)

// ownGroup does nothing: the context's end kills the command alone.
func ownGroup(*exec.Cmd) {}

// killGroup does nothing: there are no process groups.
func killGroup(*exec.Cmd) {}

// rest does nothing: the pipe is closed.
func rest(*os.File, io.Writer) {}
