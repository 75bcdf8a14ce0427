//go:build !linux

package exectool

import "os/exec"

// sandbox is none: only Linux has one.
type sandbox struct{}

// shortfall is what a sandbox lacks.
type shortfall struct{ namespaces, bounds error }

func (*shortfall) more(*sandbox, Sandbox, error) bool { return false }

func enclose(*exec.Cmd, *Options, shortfall) (*sandbox, error) { return nil, nil }

func (*sandbox) started()                                   {}
func (*sandbox) admit(*exec.Cmd) error                      { return nil }
func (*sandbox) verdict(err error, _ string) (State, error) { return State{}, err }
func (*sandbox) close() error                               { return nil }
