// Package control carries out commands on runs: it starts and forks them, gives them
// inputs and decisions, pauses, resumes, cancels and lists them, and does what time
// brings about. It knows nothing of HTTP: programs that are in the same process as the
// runs, such as commands, call its methods.
//
// A [Controller] holds nothing that the log does not hold. It owns the states idle,
// waiting_for_user and waiting_for_human and everything whose origin is control. It
// appends in no other name, and only under the run's own condition, so several
// controllers may serve the same runs. Its packages are one idea each: access reads and
// changes single runs, list pages through them, fork, decisions and subruns are commands
// on them, timers and pools work in the background.
//
// Every request that cannot be carried out is a *refusal.Error with a stable code.
package control
