// Package events is the vocabulary of Moorebus: what happens to an agent, and
// how it is written down.
//
// A run is a sequence of [Event] values, numbered 1, 2, 3… and chained by
// hashes: each body names the sha256 of the body before it. An event's body is a
// CloudEvents 1.0 document (structured JSON); its subject on the bus is the
// edge of the transition table that it takes, built and parsed by [Subject].
//
// The set of payloads is closed ([Payload] has an unexported method); an
// application's own events are [Custom] payloads whose names it registers with
// [NewCodec]. A type that the codec does not know is an error that names it, and
// is never skipped. Attributes and fields that this version does not know
// survive a round trip. Old payloads are lifted to the current version by
// upcasters while they are decoded; the stored bytes never change.
//
// The package has no clock, no randomness and no I/O: ids and times come in as
// arguments. It imports the standard library only.
package events
