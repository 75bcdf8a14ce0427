// Package reducer is the pure core of Moorebus: the transition table, the fold
// that rebuilds a run's [Memory] from its events, the effects that a memory
// wants, and the view of it that a model is shown.
//
// It is a Moore machine. A [Machine] folds one record at a time with
// [Machine.Apply]; [Effects] is a function of the memory alone and names every
// piece of work by a key, so that a runtime can start what is new, cancel what
// is gone and leave the rest alone. What an event's subject has to be follows
// from memory and payload, see [Machine.Draft].
//
// Nothing here reads a clock, a random source, a file or the environment: times
// and ids come in events, and no result depends on the order of a map. The same
// records give the same memory for ever.
//
// A run that was forked begins where another one stood: its first event is folded
// into that run's memory, which has to be handed in by [Memory.Adopt].
//
// A record that is not a legal event of its run is never skipped: the fold
// counts it, marks the run poisoned, leaves everything else as it was and from
// then on wants nothing but the run's end.
package reducer
