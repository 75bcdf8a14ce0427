//go:build !unix

package mcptool

import "os/exec"

// ownGroup does nothing: the command alone is ended.
func ownGroup(*exec.Cmd) {}

// endGroup does nothing: there is no signal that asks.
func endGroup(*exec.Cmd) {}

// killGroup kills the command.
func killGroup(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // it may be gone already
}
