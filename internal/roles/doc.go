// Package roles has the commands of the roles that are processes of their own. Each is a program,
// and a command of moorebus.
package roles
