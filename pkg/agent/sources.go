package agent

import (
	"github.com/moorebus/moorebus/internal/breaker"
	"github.com/moorebus/moorebus/pkg/tool"
)

// opener makes a source, which is not running yet.
type opener func() (tool.Source, error)

// Source gives the agent tools, by name, of a source of tools that come and go: an
// MCP server, with
//
//	func() (tool.Source, error) { return mcptool.New(options) }
//
// A source is run once, so open makes one whenever roles start, and once when the
// agent is built, to check it. Runs wait until it has said which tools it has; one
// that does not have those named is refused. Of agents on one server one brings the
// source, and the others name its tools by [Builder.RemoteTools].
func (b *Builder) Source(open func() (tool.Source, error), tools ...string) *Builder {
	b.sources = append(b.sources, open)
	return b.RemoteTools(tools...)
}

// newRegistry makes a registry of tools and of what the sources will give. Nothing
// is started.
func newRegistry(tools []tool.Tool, open []opener) (*tool.Registry, error) {
	options := tool.Options{Gate: breaker.New}
	for _, open := range open {
		source, err := open()
		if err != nil {
			return nil, err
		}
		options.Sources = append(options.Sources, source)
	}
	return tool.NewRegistryWith(options, tools...)
}
