// Package gateway is the role between the outside and the log: it starts runs,
// takes their inputs, controls them, and shows what the log says, to programs
// over HTTP and to commands as plain methods.
//
// A [Gateway] holds nothing that the log does not hold. It owns the states idle,
// waiting_for_user and waiting_for_human and everything whose origin is control;
// it appends in no other name, and only under the run's own condition, so several
// gateways may serve the same runs. Its worker joins the decisions on a batch of
// calls. Its timers end what has to end by itself: an approval that nobody gave, a
// run that took longer than it may, and one in which nothing happens although
// there is work to be done.
//
// What it promises to readers: events are the stored bytes, in the log's order;
// a stream can be resumed at any event and misses none; a reader that is slow or
// goes away costs a bounded amount of memory for a bounded time and delays
// nobody else.
//
// Every failure that is the caller's is an *[Error] with an HTTP status and a
// stable code.
package gateway
