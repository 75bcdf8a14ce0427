package exectool

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"time"
)

// output reads what a command writes. Package exec closes its own pipes when their time is over,
// and loses what they hold then, which is everything if no processor was free until then.
type output struct {
	pipes [2]*os.File // what is read, of standard output and standard error
	into  [2]io.Writer
	ended chan error
}

// attach makes the pipes of a command. begin or close follows.
func attach(cmd *exec.Cmd, stdout, stderr io.Writer) (*output, error) {
	o := &output{into: [2]io.Writer{stdout, stderr}, ended: make(chan error, 2)}
	for i, to := range []*io.Writer{&cmd.Stdout, &cmd.Stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			o.close(cmd)
			return nil, err
		}
		o.pipes[i], *to = r, w
	}
	return o, nil
}

// begin reads, once the command has started.
func (o *output) begin(cmd *exec.Cmd) {
	letGo(cmd)
	for i, r := range o.pipes {
		go func() {
			_, err := io.Copy(o.into[i], r)
			o.ended <- err
		}()
	}
}

// end returns when everything was read. The command has ended, so what it left behind may write
// for a while only.
func (o *output) end(grace time.Duration) {
	until := time.Now().Add(grace)
	late := false
	for _, r := range o.pipes {
		if r.SetReadDeadline(until) != nil { // not on this system
			stop := time.AfterFunc(grace, func() { _ = r.Close() })
			defer stop.Stop()
		}
	}
	for range o.pipes {
		late = errors.Is(<-o.ended, os.ErrDeadlineExceeded) || late
	}
	for i, r := range o.pipes {
		if late {
			rest(r, o.into[i])
		}
		_ = r.Close() // it was only read
	}
}

// close gives the pipes of a command that did not start back.
func (o *output) close(cmd *exec.Cmd) {
	letGo(cmd)
	for _, r := range o.pipes {
		if r != nil {
			_ = r.Close()
		}
	}
}

// letGo closes this process's copies of what the command writes to.
func letGo(cmd *exec.Cmd) {
	for _, w := range []io.Writer{cmd.Stdout, cmd.Stderr} {
		if file, ok := w.(*os.File); ok {
			_ = file.Close()
		}
	}
}
