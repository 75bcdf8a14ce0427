// Package helm has the tests of the Helm chart. They render every file of
// deploy/helm/examples as Helm does, decode each object into the type of its API, check that
// objects refer to each other, and run what the containers would run, against a nats-server.
// No cluster takes part.
package helm
