// Package conceal hides the memory and the environment of a process from the programs that it
// starts and from other processes of its user.
package conceal
