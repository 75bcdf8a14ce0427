//go:build !linux

package exectool

import "os/exec"

// sandbox is none: only Linux has one.
type sandbox struct{}

func enclose(*exec.Cmd, *Options, error) (*sandbox, error) { return nil, nil }

func (*sandbox) started()                         {}
func (*sandbox) verdict(err error) (State, error) { return State{}, err }
func (*sandbox) close() error                     { return nil }

// Conceal does nothing on this system.
func Conceal() error { return nil }
