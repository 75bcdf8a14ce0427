// Package console shows runs, agents, tools and the state of an installation to
// people and to scripts: lines, tables, JSON and YAML on a writer.
//
// It decides nothing and changes nothing. What comes out of a log is other
// people's text, so whatever is meant for a terminal has control characters
// taken out of it; JSON is the stored bytes. Writers get whole lines at a time.
package console
