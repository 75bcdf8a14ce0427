// Package simtest is a journal in memory that misbehaves on request: it delays,
// duplicates and reorders deliveries, loses acknowledgements, leaves the outcome of
// appends unknown, and lets processes die at chosen points. Without faults it is a plain,
// fast journal.
//
// What goes wrong is decided by the seed, the record and the attempt, and by
// nothing else, so it does not depend on the order in which goroutines run. All
// times come from package time: inside testing/synctest a simulation of hours
// takes no time.
//
// A [Journal] stands for the bus. Each [Process] of it stands for one connected
// process and implements every port of package journal; once it was killed,
// nothing that is done through it has an effect any more. The Journal itself
// implements the ports too, as a first process.
package simtest
