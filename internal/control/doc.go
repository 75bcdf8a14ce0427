// Package control carries out commands on runs: it starts, forks, pauses, resumes, cancels and
// lists them, gives them inputs and decisions, and processes their timers. It knows no HTTP:
// commands and package httpapi call its methods.
//
// A [Controller] holds no state that is not in the log. It publishes events out of the states
// idle, waiting_for_user and waiting_for_human and those with the origin control, each under
// the run's own condition, so several controllers may serve the same runs.
//
// Its packages are one idea each: access reads and changes single runs, list pages through
// them, forking, decisions and subruns are commands on them, timers and pools work in the
// background.
//
// The error of a request that cannot be carried out is a *refusal.Error with a stable code.
package control
