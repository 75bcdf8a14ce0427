// Package check has the checks of what is in deploy: a module of its own, since they need
// libraries that nothing else of the project does. `make deploy-check` runs them.
package check
