// Package prom has the checks of what Prometheus reads in deploy, by promtool itself: it is a
// tool of this module.
package prom
