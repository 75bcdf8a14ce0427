package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of the CPU times in /proc/PID/stat: Linux shows it as
// 1/100 s to programs on every architecture.
const clockTick = 10 * time.Millisecond

// residentSet reads a process's memory in bytes: what it has now (VmRSS), and the most
// that it ever had (VmHWM). It needs Linux.
func residentSet(pid int) (now, most float64, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("a process's memory is read from /proc, which needs Linux: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(line, ":")
		if name != "VmRSS" && name != "VmHWM" {
			continue
		}
		kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
		if err != nil {
			return 0, 0, err
		}
		if name == "VmRSS" {
			now = kib * 1024
		} else {
			most = kib * 1024
		}
	}
	return now, most, nil
}

// cpuTime reads how long a process has computed, in user and system mode. It needs
// Linux.
func cpuTime(pid int) (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("a process's CPU time is read from /proc, which needs Linux: %w", err)
	}
	// The command's name, in parentheses, may hold spaces; utime and stime are the
	// 12th and 13th field after it.
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

const bytesPerMiB = 1 << 20
