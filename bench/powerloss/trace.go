package powerloss

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// tracedCalls are the system calls that strace records: all that change files, and
// those that say which file a descriptor is and which process a thread belongs to.
const tracedCalls = "open,openat,openat2,creat,close,dup,dup2,dup3,fcntl,lseek," +
	"write,pwrite64,writev,pwritev,pwritev2,copy_file_range,sendfile,splice,mmap," +
	"truncate,ftruncate,fallocate,fsync,fdatasync,sync_file_range,sync,syncfs,ioctl," +
	"rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,link,linkat,symlink,symlinkat," +
	"clone,clone3,fork,vfork,execve"

// call is one system call of a trace.
type call struct {
	thread int
	name   string
	args   string
	// result is what follows the equals sign, "?" if the thread ended in the call.
	result string
}

// returned is the number that the call returned, and false if it failed or did not
// return.
func (c *call) returned() (int64, bool) {
	word, _, _ := strings.Cut(c.result, " ")
	n, err := strconv.ParseInt(word, 0, 64)
	return n, err == nil && n >= 0
}

// step is one line of a trace: a call's beginning, its end, or both. A process that was
// killed has a line with its thread alone.
type step struct {
	call          *call
	begins, ends  bool
	threadIsEnded bool
	thread        int
}

// parseTrace reads what `strace -f -o` wrote. The order of the steps is one in which
// things happened: strace lets a thread continue only after it has written the line.
func parseTrace(r io.Reader) ([]step, error) {
	in := bufio.NewReaderSize(r, 1<<20)
	open := map[int]*call{}
	var steps []step
	for n := 1; ; n++ {
		line, err := in.ReadString('\n')
		if errors.Is(err, io.EOF) && line == "" {
			return steps, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		s, err := parseLine(strings.TrimSuffix(line, "\n"), open)
		if err != nil {
			return nil, fmt.Errorf("trace, line %d: %w", n, err)
		}
		if s != (step{}) {
			steps = append(steps, s)
		}
	}
}

// parseLine reads one line. open has the calls that have begun, by thread.
func parseLine(line string, open map[int]*call) (step, error) {
	id, rest, _ := strings.Cut(line, " ")
	thread, err := strconv.Atoi(id)
	if err != nil {
		return step{}, fmt.Errorf("no thread in %.80q", line)
	}
	rest = strings.TrimLeft(rest, " ")
	if strings.HasPrefix(rest, "+++ ") {
		delete(open, thread)
		return step{thread: thread, threadIsEnded: true}, nil
	}
	if strings.HasPrefix(rest, "--- ") {
		return step{}, nil
	}
	if more, resumed := strings.CutPrefix(rest, "<... "); resumed {
		c := open[thread]
		name, tail, _ := strings.Cut(more, " resumed>")
		if c == nil || c.name != name {
			return step{}, fmt.Errorf("%s goes on that did not begin", name)
		}
		delete(open, thread)
		return step{thread: thread, call: c, ends: true}, c.finish(c.args + tail)
	}
	name, args, found := strings.Cut(rest, "(")
	if !found {
		return step{}, fmt.Errorf("no call in %.80q", line)
	}
	c := &call{thread: thread, name: name}
	if begun, unfinished := strings.CutSuffix(args, " <unfinished ...>"); unfinished {
		c.args = strings.TrimSuffix(begun, ",")
		if begun != c.args {
			c.args += ", "
		}
		open[thread] = c
		return step{thread: thread, call: c, begins: true}, nil
	}
	return step{thread: thread, call: c, begins: true, ends: true}, c.finish(args)
}

// finish splits what follows the parenthesis into arguments and result.
func (c *call) finish(text string) error {
	at := strings.LastIndex(text, ") ")
	// An explanation in parentheses may follow the result: "= -1 ENOENT (No such …)".
	for at >= 0 && !strings.HasPrefix(strings.TrimLeft(text[at+1:], " "), "= ") {
		at = strings.LastIndex(text[:at], ") ")
	}
	if at < 0 {
		return fmt.Errorf("%s has no result: %.80q", c.name, text)
	}
	c.args, c.result = text[:at], strings.TrimPrefix(strings.TrimLeft(text[at+1:], " "), "= ")
	return nil
}

// number is the call's argument i as a number, or false.
func (c *call) number(i int) (int64, bool) {
	word, ok := c.word(i)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(word, 0, 64)
	return n, err == nil
}

// word is the call's argument i as strace wrote it.
func (c *call) word(i int) (string, bool) {
	rest := c.args
	for {
		end := argumentEnd(rest)
		if i == 0 {
			return strings.TrimSpace(rest[:end]), end > 0
		}
		if end == len(rest) {
			return "", false
		}
		rest, i = strings.TrimLeft(rest[end+1:], " "), i-1
	}
}

// argumentEnd is where the first argument ends: at a comma outside quotes and brackets.
func argumentEnd(s string) int {
	depth, quoted := 0, false
	for i := 0; i < len(s); i++ {
		switch b := s[i]; {
		case quoted && b == '\\':
			i++
		case b == '"':
			quoted = !quoted
		case quoted:
		case b == '[' || b == '{' || b == '(':
			depth++
		case b == ']' || b == '}' || b == ')':
			depth--
		case b == ',' && depth == 0:
			return i
		}
	}
	return len(s)
}

// text is the call's argument i as the bytes that strace quoted.
func (c *call) text(i int) ([]byte, error) {
	word, ok := c.word(i)
	if !ok || !strings.HasPrefix(word, `"`) {
		return nil, fmt.Errorf("%s: argument %d is no text: %.40q", c.name, i, word)
	}
	if !strings.HasSuffix(word, `"`) || len(word) < 2 {
		return nil, fmt.Errorf("%s: argument %d is cut off: record longer strings", c.name, i)
	}
	return unquote(word[1 : len(word)-1])
}

var escapes = map[byte]byte{'n': '\n', 't': '\t', 'r': '\r', 'v': '\v', 'f': '\f', '"': '"', '\\': '\\'}

// unquote undoes strace's quoting: C's escapes, and up to three octal digits.
func unquote(s string) ([]byte, error) {
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			out = append(out, s[i])
			continue
		}
		i++
		if i == len(s) {
			return nil, errors.New("a text ends in a backslash")
		}
		if plain, ok := escapes[s[i]]; ok {
			out = append(out, plain)
			continue
		}
		value, digits := 0, 0
		for digits < 3 && i+digits < len(s) && s[i+digits] >= '0' && s[i+digits] <= '7' {
			value = value*8 + int(s[i+digits]-'0')
			digits++
		}
		if digits == 0 {
			return nil, fmt.Errorf(`unknown escape \%c`, s[i])
		}
		out, i = append(out, byte(value)), i+digits-1
	}
	return out, nil
}
