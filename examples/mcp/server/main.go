// Command server is a small MCP server that keeps notes while it runs.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// notes holds what the tools work on.
type notes struct {
	mu   sync.Mutex
	list []string
}

type addInput struct {
	Text string `json:"text" jsonschema:"what to note"`
}

type findInput struct {
	Word string `json:"word" jsonschema:"a word that the notes contain"`
}

func (n *notes) add(_ context.Context, _ *mcp.CallToolRequest, in addInput) (*mcp.CallToolResult, any, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, in.Text)
	return text("noted"), nil, nil
}

func (n *notes) find(_ context.Context, _ *mcp.CallToolRequest, in findInput) (*mcp.CallToolResult, any, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	found := slices.DeleteFunc(slices.Clone(n.list), func(note string) bool { return !strings.Contains(note, in.Word) })
	if len(found) == 0 {
		return nil, nil, fmt.Errorf("no note contains %q", in.Word)
	}
	return text(strings.Join(found, "\n")), nil, nil
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

func main() {
	n := &notes{}
	server := mcp.NewServer(&mcp.Implementation{Name: "notes", Title: os.Getenv("NOTES_GREETING"), Version: "1"}, nil)
	harmless := false
	mcp.AddTool(server, &mcp.Tool{
		Name: "add_note", Description: "Keeps a note.", Annotations: &mcp.ToolAnnotations{DestructiveHint: &harmless},
	}, n.add)
	mcp.AddTool(server, &mcp.Tool{
		Name: "find_notes", Description: "Finds the notes that contain a word.", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true},
	}, n.find)
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		log.Fatal(err)
	}
}
