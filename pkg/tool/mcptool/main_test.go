package mcptool

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"
)

// modeEnv makes this test binary an MCP server on its standard input and output.
const modeEnv = "MCPTOOL_TEST_MODE"

// asMode begins the mode in the environment: what is there is taken out of the log,
// and the modes are words.
const asMode = "the mode "

// fastExit spares the second that a race-enabled binary waits when it ends.
const fastExit = "GORACE=atexit_sleep_ms=0"

func TestMain(m *testing.M) {
	if mode := os.Getenv(modeEnv); mode != "" {
		os.Exit(child(strings.TrimPrefix(mode, asMode)))
	}
	// Most of these tests wait for another process or a clock.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// child is what the test binary does as a server.
func child(mode string) int {
	switch mode {
	case "mute": // reads nothing and says nothing
		note("pid")
		select {}
	case "broken":
		fmt.Fprintln(os.Stderr, "no configuration found")
		return 3
	case "chatty":
		fmt.Println("Starting up...")
		fmt.Println(`{"half": `)
	case "requests":
		for i := range 1_000_000 {
			fmt.Printf(`{"jsonrpc":"2.0","id":%d,"method":"sampling/createMessage","params":{}}`+"\n", i)
		}
		return 0
	case "endless":
		for line := bytes.Repeat([]byte("x"), 1<<20); ; {
			if _, err := os.Stdout.Write(line); err != nil {
				return 1
			}
		}
	case "pages", "flap", "quota", "blab":
		return lister(mode)
	case "stubborn":
		ignoreSignals()
	}
	note("pid")
	s := newServer(mode)
	ctx := context.Background()
	err := s.Run(ctx, &mcp.StdioTransport{})
	if mode == "stubborn" {
		select {}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// lister is a server of few words. Its tools never end: there is always another
// page, or it says with every list that it has changed. Or it has one, of which it
// says that the quota is used up, or with which it ends; then it says its secrets.
func lister(mode string) int {
	if mode == "blab" {
		fmt.Fprintln(os.Stderr, "starting with "+os.Getenv("BLAB"))
		fmt.Fprintln(os.Stderr, strings.Repeat("x", maxErrorLine-10)+os.Getenv("BLAB"))
		fmt.Fprintln(os.Stderr, os.Getenv("BLABKEY"))
		fmt.Println(strings.Repeat("x", 20) + os.Getenv("BLAB") + strings.Repeat("x", 158) + os.Getenv("BLAB"))
	}
	in := bufio.NewScanner(os.Stdin)
	for n := 0; in.Scan(); {
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
		}
		_ = json.Unmarshal(in.Bytes(), &m) // what is no message has no method
		switch m.Method {
		case "initialize":
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"x","version":"1"}}}`+"\n", m.ID)
		case "tools/call":
			appendLine(os.Getenv("HANGFILE"), "called")
			if mode == "blab" {
				fmt.Fprintln(os.Stderr, "token "+os.Getenv("BLAB"))
				return 3
			}
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32004,"message":"the quota is used up"}}`+"\n", m.ID)
		case "tools/list":
			if mode == "quota" || mode == "blab" {
				fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[%s]}}`+"\n", m.ID, oneTool)
				continue
			}
			n++
			appendLine(os.Getenv("HANGFILE"), "listed")
			size, cursor := 1, ""
			if mode == "pages" {
				size, cursor = 3<<20, fmt.Sprintf(`"nextCursor":"%d",`, n)
			}
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{%s"tools":[{"name":"t%d","description":"%s","inputSchema":{"type":"object"}},{"name":""}]}}`+"\n",
				m.ID, cursor, n, strings.Repeat("d", size))
			if mode == "flap" {
				fmt.Println(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
			}
		}
	}
	return 0
}

// note appends this process's id to the file that the variable names.
func note(kind string) {
	if file := os.Getenv(strings.ToUpper(kind) + "FILE"); file != "" {
		appendLine(file, strconv.Itoa(os.Getpid()))
	}
}

func appendLine(file, line string) {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, _ = fmt.Fprintln(f, line)
		_ = f.Close()
	}
}

func words(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

type handler = func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error)

func ptr[T any](v T) *T { return &v }

// newServer is a server of the SDK with a tool for each thing that can happen.
func newServer(mode string) *mcp.Server {
	var o *mcp.ServerOptions
	if mode == "books" {
		o = &mcp.ServerOptions{Capabilities: &mcp.ServerCapabilities{}}
	}
	if mode == "library" {
		o = &mcp.ServerOptions{Instructions: "Look before you leap."}
	}
	s := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, o)
	if mode == "library" || mode == "old" || mode == "books" {
		addLibrary(s)
	}
	if mode == "books" { // no tools
		s.RemoveTools("order")
		return s
	}
	if mode == "old" {
		s.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
				if method == "server/discover" {
					return nil, &jsonrpc.Error{Code: -32601, Message: "method not found"}
				}
				return next(ctx, method, req)
			}
		})
	}
	if mode == "modern" {
		s.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
				if method == "initialize" {
					return nil, fmt.Errorf("this server knows only later versions")
				}
				return next(ctx, method, req)
			}
		})
	}
	add := func(name string, a *mcp.ToolAnnotations, h handler) {
		s.AddTool(&mcp.Tool{Name: name, Description: "does " + name, Annotations: a, InputSchema: json.RawMessage(`{"type":"object"}`)}, h)
	}
	add("echo", &mcp.ToolAnnotations{ReadOnlyHint: true}, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return words(string(r.Params.Arguments)), nil
	})
	add("key", &mcp.ToolAnnotations{IdempotentHint: true, DestructiveHint: ptr(false)}, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return words(fmt.Sprint(r.Params.Meta[metaIdempotencyKey])), nil
	})
	add("trace", nil, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		header := ""
		if r.Extra != nil {
			header = r.Extra.Header.Get("traceparent")
		}
		return words(fmt.Sprint(r.Params.Meta["traceparent"], " ", header)), nil
	})
	add("fail", nil, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		res := words("no such city")
		res.IsError = true
		return res, nil
	})
	add("silent-fail", nil, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{IsError: true}, nil
	})
	add("protocol-error", nil, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return nil, fmt.Errorf("the database is locked")
	})
	add("hang", nil, hang)
	add("mixed", nil, mixed)
	add("structured", nil, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{StructuredContent: map[string]any{"sum": 3, "less": "<"}}, nil
	})
	add("ask", nil, ask)
	add("flood", nil, flood)
	add("giant", nil, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return words(strings.Repeat("x", 8<<20)), nil
	})
	add("die", nil, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		fmt.Fprintln(os.Stderr, "out of cheese")
		os.Exit(3)
		return nil, nil
	})
	add("breed", nil, breed)
	add("mumble", nil, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		for i := range 2000 {
			fmt.Fprintln(os.Stderr, "line", i, strings.Repeat("y", 3000))
		}
		return words("said"), nil
	})
	add("grow", nil, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		add("grown", nil, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return words("I am new"), nil
		})
		return words("ok"), nil
	})
	add("shrink", nil, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		s.RemoveTools("grown")
		return words("ok"), nil
	})
	add("swell", nil, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		for i := range 3000 {
			add(fmt.Sprintf("swollen-%d", i), nil, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return words("x"), nil })
		}
		return words("ok"), nil
	})
	return s
}

// hang says in files that it began and that it was stopped.
func hang(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	appendLine(os.Getenv("HANGFILE"), "began")
	<-ctx.Done()
	appendLine(os.Getenv("HANGFILE"), "stopped")
	return nil, ctx.Err()
}

func mixed(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	return &mcp.CallToolResult{Content: []mcp.Content{
		&mcp.TextContent{Text: "a chart:"},
		&mcp.ImageContent{MIMEType: "image/png", Data: []byte("\x89PNG data")},
		&mcp.AudioContent{MIMEType: "audio/wav", Data: []byte("RIFF")},
		&mcp.ResourceLink{URI: "file:///a.csv", Name: "a.csv", MIMEType: "text/csv", Size: ptr[int64](12), Description: "the data"},
		&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "file:///b.txt", Text: "inner text"}},
		&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "file:///c.bin", MIMEType: "application/x", Blob: []byte{0, 1}}},
	}}, nil
}

// ask asks the client for everything that a server may ask for.
func ask(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	//lint:ignore SA1019 servers still ask for it
	_, sampling := r.Session.CreateMessage(ctx, &mcp.CreateMessageParams{MaxTokens: 1, Messages: []*mcp.SamplingMessage{}})
	//lint:ignore SA1019 servers still ask for it
	roots, rootsErr := r.Session.ListRoots(ctx, nil)
	count := 0
	if roots != nil {
		count = len(roots.Roots)
	}
	return words(fmt.Sprintf("sampling refused: %v; roots: %d %v", sampling != nil, count, rootsErr != nil)), nil
}

func flood(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	for i := range 4000 {
		_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: "x", Progress: float64(i), Message: strings.Repeat("z", 200)})
	}
	return words("the end of the flood"), nil
}

// breed leaves a process behind that outlives a call.
func breed(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	appendLine(os.Getenv("PIDFILE"), strconv.Itoa(cmd.Process.Pid))
	return words("started"), nil
}

// alive reports whether a process is there. One that waits to be reaped by init is
// gone.
func alive(pid int) bool {
	status, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return syscall.Kill(pid, 0) == nil && !strings.Contains(string(status), ") Z ")
}

// lines are those of a file that children write.
func lines(file string) []string {
	content, _ := os.ReadFile(file) // one that is not there has none
	return strings.Fields(string(content))
}

// within is how long what happens in other processes may take.
const within = time.Minute

func ignoreSignals() { signal.Ignore(syscall.SIGTERM, syscall.SIGINT) }
