// Package seccomp refuses a thread, and what it starts, system calls that lead out of a sandbox.
package seccomp
