// Package reducer is the pure core of Moorebus: the transition table, the fold that
// rebuilds a run's [Memory] from its events, and the view of it that a model is shown.
//
// A [Machine] folds one record at a time with [Machine.Apply]. What an event's subject has
// to be follows from memory and payload, see [Machine.Draft]. Where a run has work, and
// which, follows from the memory alone.
//
// Nothing here reads a clock, a random source, a file or the environment. Times and ids
// come in events, and no result depends on the order of a map. The same records give the
// same memory forever.
//
// A forked run begins where another run stood. Its first event is folded into that run's
// memory, which [Memory.Adopt] hands in.
//
// A record that is not a legal event of its run is never skipped. The fold counts it, marks
// the run poisoned and leaves everything else as it was. From then on only the run's end is
// legal.
package reducer
