// Package landlock confines a thread, and what it starts, to some files. Landlock is a part of the
// Linux kernel that needs no privileges (https://docs.kernel.org/userspace-api/landlock.html).
package landlock
