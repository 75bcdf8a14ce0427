// Package conceal keeps what a process holds from the programs that it starts and from other
// processes of its user.
package conceal
