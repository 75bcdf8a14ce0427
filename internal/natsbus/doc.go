// Package natsbus is the journal on NATS JetStream. It is the only package that
// knows JetStream's API.
//
// A [Bus] implements every port of package journal over one connection, which
// stays the caller's: connect with [Connect] or in process, open the bus with
// [Open] or [Wait], drain the consumers by ending their contexts, then close the
// connection. Streams, consumers and buckets are declared once, in topology.go,
// and made by [Init]; [Check] says what is wrong with them.
//
// Promises, beyond those of the port: an append is one conditional publish, or
// one atomic batch if it has several entries; reads are batched direct gets, so
// that a reader needs no consumer; a worker never has more deliveries asked for
// and running than slots; nothing gives up because the bus is away, except an
// append, whose outcome is then [journal.ErrInDoubt], and a single read; an append
// that an election on several replicas left without an answer is looked for in the
// log, and sent again under its condition where it is not there, for RequestTimeout
// altogether.
package natsbus
