package ports

import "context"

// RoleKey names something small that the processes of one role keep on the bus: a lease or a
// position. Both are tokens.
type RoleKey struct {
	// Role is whose processes may write it. Name is unique within the role.
	Role, Name string
}

// Leases let one process of several do what must not be done twice at once.
type Leases interface {
	// Lead calls work whenever this process gets the lease, one call at a time, until ctx
	// ends. The context of work ends when the lease is lost, or may be: when it could not be
	// renewed for longer than half of what is left to others. So two processes work at
	// once only if one of them does not notice in time that its context ended. Work must allow
	// for that: what it stores is to be conditional, or harmless when stored twice.
	//
	// If work returns an error, or returns nil before its context ends, the lease is given
	// back, and Lead returns what work returned. Lead returns nil when ctx ends. It waits
	// through outages. Other errors: [journal.ErrDenied], and [journal.ErrNotReady] on a bus
	// that was set up by a build without leases.
	Lead(ctx context.Context, of RoleKey, work func(ctx context.Context) error) error
}
