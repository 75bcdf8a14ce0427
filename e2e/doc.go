// Package e2e holds the tests that run Moorebus as its users do: the commands
// as their own processes around a nats-server process, talked to over HTTP
// and the wire alone. A model server plays recorded conversations and holds
// every request to the recording; a tool server answers with the recorded
// results; a driver plays the user.
//
// The conversations are those of testdata/conversations. The environment
// variable MOOREBUS_CONVERSATIONS names a file of others in the same shape, a
// JSON array of objects with `messages` in OpenAI's chat format, which are then
// run instead:
//
//	MOOREBUS_CONVERSATIONS=recorded.json go test -v ./e2e -run 'TestConversations|TestLogSize'
//
// The package has tests and nothing to import.
package e2e
