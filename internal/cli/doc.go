// Package cli is what the commands have in common, so that a main only wires:
// how a process ends ([Main], [ExitError]), how it finds the bus ([BusFlags],
// [Open]), how it logs ([LogFlags]) and how a role is named ([RoleFlags]).
//
// A command's data goes to stdout, everything else to stderr. Flags go before
// the environment, and the environment before defaults. The exit codes are the
// same for all commands and stand in this package alone.
package cli
