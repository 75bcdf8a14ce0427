// Package console tests the console in a real browser, against a real process.
package console
