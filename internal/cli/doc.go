// Package cli is what the commands have in common, so that a main only wires: how a
// process ends ([Main], [ExitError]), how it finds the bus ([BusFlags], [Open]), how it
// logs ([LogFlags]) and how a role is named ([RoleFlags]).
//
// A command's data goes to stdout, everything else to stderr. Flags take precedence over
// the environment, and the environment over defaults. The exit codes are the same for all
// commands and are defined here only.
package cli
