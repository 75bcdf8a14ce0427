// Package confine confines a thread, and what it starts: to some files with Landlock, which needs no
// privileges (https://docs.kernel.org/userspace-api/landlock.html), and to the system calls that do
// not lead out of a sandbox with seccomp.
package confine
