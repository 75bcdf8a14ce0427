// Package console shows runs, agents, tools and the state of an installation to
// people and to scripts: lines, tables, JSON and YAML on a writer.
//
// It decides nothing and changes nothing. A log holds other people's text, so output for a
// terminal shows control characters as escapes. JSON output is the stored bytes. Each write
// is whole lines.
package console
