package llm

import (
	"fmt"
	"slices"
	"strings"
)

// WithPlainNames prepares a call for a model API that takes only letters, digits, _
// and - in the names of tools, where ours may have dots. It returns the request and
// the receiver of chunks to call the API with (nil stays nil), and restore, which
// gives the response its names back. Names that fit already stay as they are;
// nothing that is handed in is changed.
func WithPlainNames(req Request, stream func(Chunk)) (plain Request, chunks func(Chunk), restore func(Response) Response) {
	names := plainNames(req.Tools)
	if len(names) == 0 {
		return req, stream, func(res Response) Response { return res }
	}
	own := make(map[string]string, len(names))
	for name, plain := range names {
		own[plain] = name
	}
	req.Tools = slices.Clone(req.Tools)
	for i := range req.Tools {
		req.Tools[i].Name = renamed(names, req.Tools[i].Name)
	}
	req.Messages = slices.Clone(req.Messages)
	for i := range req.Messages {
		m := &req.Messages[i]
		m.Name = renamed(names, m.Name)
		m.Calls = renamedCalls(names, m.Calls)
	}
	if stream != nil {
		chunks = func(c Chunk) {
			c.Name = renamed(own, c.Name)
			stream(c)
		}
	}
	return req, chunks, func(res Response) Response {
		if calls, ok := res.(ToolCalls); ok {
			calls.Calls = renamedCalls(own, calls.Calls)
			return calls
		}
		return res
	}
}

// plainNames returns the names of those tools that need another one. No two tools
// have the same.
func plainNames(tools []Tool) map[string]string {
	taken := map[string]bool{}
	for _, t := range tools {
		if plainName(t.Name) == t.Name {
			taken[t.Name] = true
		}
	}
	names := map[string]string{}
	for _, t := range tools {
		plain := plainName(t.Name)
		if plain == t.Name {
			continue
		}
		base := plain
		for k := 2; taken[plain]; k++ {
			mark := fmt.Sprintf("_%d", k)
			plain = base[:min(len(base), 64-len(mark))] + mark
		}
		taken[plain], names[t.Name] = true, plain
	}
	return names
}

func plainName(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-':
			return r
		}
		return '_'
	}, name)
}

func renamed(names map[string]string, name string) string {
	if other, ok := names[name]; ok {
		return other
	}
	return name
}

func renamedCalls(names map[string]string, calls []Call) []Call {
	calls = slices.Clone(calls)
	for i := range calls {
		calls[i].Name = renamed(names, calls[i].Name)
	}
	return calls
}
