package journal

// Bus is everything that the roles of an installation need of a journal. A bus may
// also have [Snapshots], [Tombstones], [Peers] and the other ports of this package,
// which roles use where they are there.
type Bus interface {
	Log
	Feed
	Queue
	Timers
	Directory
	Agents
	Blobs
	Storage
}
