//go:build unix

package main

import "syscall"

// suspend stops the process where it is, resume lets it continue.
func (p *process) suspend() { p.signal(syscall.SIGSTOP) }
func (p *process) resume()  { p.signal(syscall.SIGCONT) }

func (p *process) signal(s syscall.Signal) {
	if cmd, _ := p.running(); cmd != nil {
		_ = cmd.Process.Signal(s) // it may be over
	}
}
