// Package check has the checks of what is in deploy: its own module, since they need
// libraries that nothing else of the project does. `make deploy-check` runs them.
package check
