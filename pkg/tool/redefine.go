package tool

import "io"

// redefined is a tool under another definition.
type redefined struct {
	Tool
	def Definition
}

// Redefine returns the tool under its own definition with every field of over
// that is set in place of its own. It closes what t closes.
func Redefine(t Tool, over Definition) Tool {
	def := t.Definition()
	if over.Name != "" {
		def.Name = over.Name
	}
	if over.Description != "" {
		def.Description = over.Description
	}
	if len(over.Schema) > 0 {
		def.Schema = over.Schema
	}
	if over.Effect != "" {
		def.Effect = over.Effect
	}
	if over.Pool != "" {
		def.Pool = over.Pool
	}
	if over.Risk != "" {
		def.Risk = over.Risk
	}
	if over.Timeout != 0 {
		def.Timeout = over.Timeout
	}
	if over.Retries != 0 {
		def.Retries = over.Retries
	}
	if over.Breaker != (Breaker{}) {
		def.Breaker = over.Breaker
	}
	return redefined{Tool: t, def: def}
}

// Definition returns the merged definition.
func (r redefined) Definition() Definition { return r.def }

// Close closes the tool, if it wants closing.
func (r redefined) Close() error {
	if c, ok := r.Tool.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
