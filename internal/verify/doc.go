// Package verify folds the runs of a log and checks every record. It writes nothing
// to any log and starts no effect.
//
// Verification holds every record to the reducer's rules (its place, the chain
// of hashes, the transition table, what its subject permits), and the reducer to
// SPEC's: who may write which field of memory, that a fold through a snapshot is
// the same fold, that an event that was read is written again as it was.
//
// A run with a record that is not legal is either poisoned or diverged. It is
// poisoned if the system dealt with the record as it should: the run was ended
// because of it, or nothing has happened since. It diverged if somebody continued
// as if the record were legal, or if the record does not stand on the one before
// it, as after a change to a stored body: then what is read is not what was
// written.
package verify
