package journal

// Bus is everything that the roles of an installation need of a journal. The
// adapters for NATS have further ones, which roles use if they are there.
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
