package mcptool

import (
	"context"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/moorebus/moorebus/pkg/tool"
)

// text is a result as the model sees it.
func text(ctx context.Context, res *mcp.CallToolResult) string {
	var parts []string
	said := false
	for _, c := range res.Content {
		part, isText := part(ctx, c)
		said = said || isText
		parts = append(parts, part)
	}
	if !said && res.StructuredContent != nil {
		if data, err := compact(res.StructuredContent); err == nil {
			parts = append([]string{string(data)}, parts...)
		}
	}
	return strings.Join(parts, "\n")
}

// part is one part of a result, and whether it is text by itself.
func part(ctx context.Context, c mcp.Content) (string, bool) {
	switch c := c.(type) {
	case *mcp.TextContent:
		return c.Text, true
	case *mcp.ImageContent:
		return kept(ctx, "image", c.MIMEType, c.Data), false
	case *mcp.AudioContent:
		return kept(ctx, "audio", c.MIMEType, c.Data), false
	case *mcp.ResourceLink:
		return link(c), false
	case *mcp.EmbeddedResource:
		return resource(ctx, c.Resource)
	}
	return fmt.Sprintf("[content of a kind that is not known: %T]", c), false
}

// kept gives data to the call's keeper and says where it is.
func kept(ctx context.Context, what, mime string, data []byte) string {
	if mime != "" {
		what += " " + mime
	}
	what = fmt.Sprintf("%s, %d bytes", what, len(data))
	keep := tool.KeeperFrom(ctx)
	if keep == nil {
		return "[" + what + ", not kept]"
	}
	where, err := keep(ctx, data)
	if err != nil {
		return "[" + what + ", could not be kept: " + err.Error() + "]"
	}
	return "[" + what + ", kept as " + where + "]"
}

func link(l *mcp.ResourceLink) string {
	var b strings.Builder
	b.WriteString("[resource " + l.URI)
	for _, more := range []string{l.Name, l.MIMEType} {
		if more != "" {
			b.WriteString(", " + more)
		}
	}
	if l.Size != nil {
		fmt.Fprintf(&b, ", %d bytes", *l.Size)
	}
	if l.Description != "" {
		b.WriteString(": " + l.Description)
	}
	b.WriteString("]")
	return b.String()
}

// resource is one that came with the result.
func resource(ctx context.Context, r *mcp.ResourceContents) (string, bool) {
	switch {
	case r == nil:
		return "[resource without contents]", false
	case r.Blob != nil:
		return kept(ctx, "resource "+r.URI, r.MIMEType, r.Blob), false
	}
	return "[resource " + r.URI + "]\n" + r.Text, true
}
