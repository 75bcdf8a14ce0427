package moorebus_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/moorebus/moorebus"

// source is one package: its files without tests, and what they import.
type source struct {
	dir     string // relative to the module, "." for its root
	name    string
	files   map[string]*ast.File
	imports map[string]string // import path, and a file that imports it
	comment bool
	lines   map[string]int
}

// sources reads every package of the module.
func sources(t *testing.T) map[string]*source {
	t.Helper()
	all := map[string]*source{}
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); n != "." && (strings.HasPrefix(n, ".") || strings.HasPrefix(n, "_") || n == "testdata" || n == "node_modules" || n == "vendor") {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(file, "go.mod")); err == nil && file != "." {
				return filepath.SkipDir // a module of its own
			}
			return nil
		}
		if strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, "_test.go") {
			read(t, all, filepath.ToSlash(file))
		}
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, all)
	return all
}

func read(t *testing.T, all map[string]*source, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.ParseComments|parser.SkipObjectResolution)
	require.NoError(t, err)
	dir := path.Dir(file)
	s := all[dir]
	if s == nil {
		s = &source{dir: dir, files: map[string]*ast.File{}, imports: map[string]string{}, lines: map[string]int{}}
		all[dir] = s
	}
	s.name, s.files[file], s.lines[file] = parsed.Name.Name, parsed, bytes.Count(text, []byte("\n"))
	s.comment = s.comment || parsed.Doc.Text() != ""
	for _, spec := range parsed.Imports {
		s.imports[strings.Trim(spec.Path.Value, `"`)] = file
	}
}

// internal returns the packages of the module that s imports, outside the
// libraries; the standard library is in neither.
func (s *source) internal() (own, outside []string) {
	for _, p := range slices.Sorted(maps.Keys(s.imports)) {
		first, _, _ := strings.Cut(p, "/")
		switch {
		case p == module, strings.HasPrefix(p, module+"/"):
			own = append(own, strings.TrimPrefix(strings.TrimPrefix(p, module), "/"))
		case strings.Contains(first, "."):
			outside = append(outside, p)
		}
	}
	return own, outside
}

// The packages of layers 0 to 2 that are not adapters of a port, with what they
// may import. This is the table "Layers" of the design.
var lower = map[string][]string{
	"internal/codec":            {},
	"internal/meter":            {},
	"internal/plan":             {},
	"internal/media":            {},
	"internal/codes":            {},
	"internal/replyitem":        {},
	"pkg/events":                {"internal/codec", "internal/codes", "internal/media", "internal/replyitem"},
	"pkg/reducer":               {"internal/codes", "pkg/events", "internal/codec"},
	"internal/effects":          {"internal/codes", "pkg/events", "pkg/reducer"},
	"internal/runid":            {"pkg/events"},
	"internal/callname":         {"pkg/events", "pkg/reducer"},
	"internal/retry":            {},
	"internal/blobs":            {},
	"internal/conceal":          {},
	"internal/confine":          {},
	"internal/tracecontext":     {},
	"internal/httpserver":       {},
	"internal/oauth":            {"internal/httpserver"},
	"internal/truncate":         {},
	"internal/diskspace":        {},
	"internal/groupflush":       {},
	"pkg/llm":                   {"pkg/events"},
	"pkg/tool":                  {},
	"internal/toolset":          {"internal/codes", "pkg/tool", "internal/retry"},
	"internal/callctx":          {"internal/codes", "pkg/tool"},
	"internal/kv":               {},
	"pkg/journal":               {"pkg/events", "internal/kv", "internal/retry"},
	"internal/tokens":           {},
	"internal/groupcommit":      {"pkg/events", "pkg/journal"},
	"internal/sharedlog":        {"internal/journalcheck", "pkg/events", "pkg/journal", "internal/retry"},
	"internal/livetext":         {"pkg/events", "pkg/journal"},
	"internal/runlog":           {"internal/codes", "internal/meter", "internal/ports", "pkg/events", "pkg/reducer", "internal/effects", "pkg/journal", "internal/codec"},
	"internal/announce":         {"pkg/journal", "pkg/events", "internal/retry", "internal/kv", "internal/buckets"},
	"internal/worker":           {"internal/codes", "internal/meter", "internal/ports", "pkg/events", "pkg/reducer", "internal/effects", "pkg/journal", "internal/runlog", "internal/retry"},
	"internal/providers":        {"internal/codec"},
	"internal/script":           {"pkg/events", "pkg/llm"},
	"internal/llmhttp":          {"internal/codec", "internal/media", "pkg/events", "pkg/llm", "internal/providers", "internal/retry", "internal/tracecontext"},
	"internal/agentfile":        {"internal/codec", "pkg/events", "pkg/tool", "internal/agentfile/strict", "internal/providers"},
	"internal/agentfile/strict": {"internal/codec"},
	"internal/docschema":        {"pkg/events", "pkg/tool", "internal/agentfile", "internal/providers"},
	"internal/approval":         {"pkg/events", "pkg/reducer", "internal/agentfile/strict"},
	"internal/toolcall":         {"internal/buckets", "internal/codes", "internal/ports", "pkg/events", "pkg/reducer", "internal/effects", "pkg/tool", "pkg/journal", "internal/runlog", "internal/worker", "internal/approval", "internal/announce", "internal/retry"},
	"internal/contextedit":      {"internal/codes", "pkg/events", "pkg/reducer", "internal/callname", "pkg/llm", "pkg/tool", "internal/truncate"},
	"internal/clientmodel":      {"pkg/events", "pkg/reducer", "internal/effects", "pkg/journal"},
	"internal/refusal":          {},
	"internal/runstart":         {"internal/agentstore", "internal/announce", "internal/buckets", "internal/kv", "internal/ports", "internal/tombstones", "internal/tracecontext", "pkg/events", "pkg/reducer", "pkg/tool", "pkg/journal", "internal/runlog", "internal/agentfile", "internal/refusal", "internal/agentfile/strict"},
	"pkg/embedded":              {"internal/retry", "internal/diskspace", "internal/groupflush"},
	"internal/runstream":        {"pkg/events", "pkg/reducer"},
	"internal/jsondiff":         {"internal/codec"},
	"internal/logwalk":          {"pkg/events", "pkg/journal"},
	"internal/journalcheck":     {"pkg/events", "pkg/journal"},
	"internal/ports":            {"pkg/events", "pkg/journal"},
	"internal/buckets":          {"internal/kv", "internal/ports", "pkg/journal"},
	"internal/tombstones":       {"internal/buckets", "internal/kv", "pkg/events", "pkg/journal"},
	"internal/agentstore":       {"internal/buckets", "internal/kv", "internal/ports", "pkg/events", "pkg/journal"},
	"internal/recordline":       {"internal/codec", "pkg/events", "pkg/journal"},
	"internal/buildinfo":        {"pkg/events", "pkg/reducer"},
	"internal/feature/row":      {"internal/kv", "internal/meter", "internal/refusal"},
	"internal/history":          {"pkg/events"},
	"internal/history/query":    {"internal/history", "internal/history/words"},
	"internal/history/store":    {"pkg/events", "internal/history", "internal/history/follow", "internal/history/query", "internal/history/words"},
	"internal/history/fold":     {"pkg/events", "pkg/reducer", "internal/history", "internal/history/words"},
	"internal/history/follow":   {"pkg/events", "pkg/reducer", "pkg/journal", "internal/logwalk", "internal/retry", "internal/runlog", "internal/history", "internal/history/fold"},
	"internal/history/segment":  {"pkg/events", "pkg/journal", "internal/blobs", "internal/history", "internal/recordline"},
	"internal/history/words":    {},
	"internal/history/notes":    {"internal/buckets", "internal/kv", "pkg/events", "pkg/journal"},
	// What actors and observers know of a feature.
	"internal/feature/storage/entrystore": {"internal/buckets", "pkg/events", "pkg/journal"},
}

// ports are the ports, with what their adapters may import.
var ports = map[string][]string{
	"pkg/llm":         {"pkg/events", "pkg/llm", "internal/script", "internal/retry", "internal/llmhttp", "internal/providers", "internal/replyitem"},
	"pkg/tool":        {"internal/codec", "internal/codes", "pkg/tool", "internal/callctx", "internal/oauth", "internal/retry", "internal/tracecontext", "internal/truncate"},
	"pkg/journal":     {"pkg/journal", "internal/codec", "pkg/events", "internal/retry", "internal/groupcommit", "internal/groupflush", "internal/journalcheck", "internal/meter", "internal/ports", "internal/kv", "internal/buckets", "internal/feature/rows", "internal/recordline"},
	"internal/tokens": {"internal/tokens"},
}

// innerAdapters are the adapters that nobody outside the module imports, with
// their ports. The others lie below their port.
var innerAdapters = map[string]string{
	"internal/natsbus":        "pkg/journal",
	"internal/natsconn":       "pkg/journal",
	"internal/natsbus/api":    "pkg/journal",
	"internal/natsbus/pull":   "pkg/journal",
	"internal/natsbus/recent": "pkg/journal",
	"internal/filelog":        "pkg/journal",
	"internal/textprotocol":   "pkg/llm",
	"internal/prices":         "pkg/llm",
	"internal/schema":         "pkg/tool",
}

// inner are the packages below an adapter that it is made of.
var inner = map[string][]string{
	"internal/natsbus":        {"internal/natsbus/api", "internal/natsbus/pull", "internal/natsbus/recent", "internal/natsconn"},
	"internal/natsbus/pull":   {"internal/natsbus/api"},
	"internal/natsbus/recent": {"internal/natsbus/api"},
	"internal/natsconn":       {"internal/natsbus/api"},
	"pkg/journal/natsbus":     {"internal/natsbus", "internal/natsconn"},
	"pkg/tool/typed":          {"internal/schema"},
	"pkg/tool/servicetool":    {"internal/schema", "internal/natsbus/api"},
	"pkg/tool/mcptool":        {"internal/schema"},
	"pkg/tool/exectool":       {"internal/conceal", "internal/confine"},
}

// suites are the suites and generators for tests, with the package they are for.
// A suite may import what that package may, the package, other suites and the
// simulated log.
var suites = map[string]string{
	"internal/journaltest":               "pkg/journal",
	"internal/journaltest/simtest":       "pkg/journal",
	"internal/llmtest":                   "internal/llmhttp",
	"internal/tooltest":                  "internal/toolset",
	"internal/reducertest":               "pkg/reducer",
	"internal/blobs/blobstest":           "internal/blobs",
	"internal/worker/workertest":         "internal/worker",
	"internal/history/historytest":       "internal/history/query",
	"internal/history/follow/followtest": "internal/history/follow",
}

// formats are libraries that turn bytes into bytes and stand for nothing outside,
// so that any adapter may use them. S2 is what the server itself compresses with,
// so it is in every build. Semver compares versions.
var formats = []string{"github.com/klauspost/compress/s2", "golang.org/x/mod/semver"}

// stdOnly are the packages without any library from outside.
var stdOnly = []string{"internal/codec", "internal/codes", "internal/meter", "internal/media", "internal/replyitem", "pkg/events", "pkg/reducer", "internal/effects", "internal/callname", "pkg/llm", "pkg/tool", "pkg/journal", "internal/tokens", "internal/worker", "internal/retry", "internal/providers", "internal/llmhttp", "internal/tracecontext"}

var roles = []string{"internal/planner", "internal/actor", "internal/subagent", "internal/observer", "internal/control", "internal/verify", "internal/transfer", "internal/custom", "internal/telemetry"}

// rolesMay import: layers 0 to 2 without adapters, whose choice is a main's.
var rolesMay = []string{
	"internal/codec", "internal/codes", "pkg/events", "pkg/reducer", "internal/effects", "internal/callname", "pkg/llm", "pkg/tool", "internal/toolset", "internal/callctx", "pkg/journal", "internal/tokens", "internal/runlog", "internal/worker",
	"internal/agentfile", "internal/agentfile/strict", "internal/approval", "internal/runstream", "internal/runstart", "internal/toolcall", "internal/announce", "internal/contextedit", "internal/retry",
	"internal/jsondiff", "internal/logwalk", "internal/providers", "internal/truncate", "internal/media", "internal/replyitem",
	"internal/livetext", "internal/sharedlog", "internal/meter", "internal/ports", "internal/journalcheck",
	"internal/kv", "internal/buckets", "internal/tombstones", "internal/agentstore", "internal/feature/storage/entrystore",
	"internal/refusal", "internal/docschema", "internal/clientmodel",
	"internal/refusal", "internal/docschema", "internal/clientmodel",
	"internal/recordline", "internal/buildinfo", "internal/tracecontext", "internal/runid",
	"internal/feature/row", "internal/feature/rows", "internal/history/notes",
}

// partsOf are the packages that belong to one role, with the role, and onTop those that
// stand on one. They may import what a role may, the role's other parts, and onTop the role.
var (
	partsOf = map[string]string{
		"internal/control/runs": "internal/control", "internal/control/list": "internal/control", "internal/control/forking": "internal/control",
		"internal/control/decisions": "internal/control", "internal/control/subruns": "internal/control",
		"internal/control/timers": "internal/control", "internal/control/pools": "internal/control", "internal/control/record": "internal/control",
		"internal/control/tally": "internal/control",
		"internal/control/dead":  "internal/control",

		"internal/control/gauges": "internal/control",
	}
	onTop = map[string]string{"internal/httpapi": "internal/control", "internal/httpapi/inputs": "internal/control", "internal/httpapi/route": "internal/control", "internal/httpapi/requests": "internal/control",
		"internal/httpapi/sse": "internal/control", "internal/a2a": "internal/control", "internal/agui": "internal/control", "internal/httpapi/openapi": "internal/control", "internal/httpapi/web": "internal/control"}
)

// featuresMay import: what stands on the gateway's role may, the requests of the core, what works on entire
// logs, and what commands are made of. They know no other feature.
var featuresMay = []string{"internal/feature", "internal/feature/row", "internal/feature/rows", "internal/control", "internal/httpapi/route", "internal/httpapi/requests", "internal/httpapi/web",
	"internal/history", "internal/history/fold", "internal/history/follow", "internal/history/query", "internal/history/store", "internal/history/words",
	"internal/blobs", "internal/transfer", "internal/verify", "internal/filelog", "internal/cli", "internal/print", "internal/runprint", "internal/terminal"}

// featureRows returns the packages with the rows that features have in tables, and what other roles need of
// them. Every program knows these, and only gateways and commands know the features.
func featureRows() []string {
	all, _ := filepath.Glob("internal/feature/*/*")
	return slices.DeleteFunc(all, func(p string) bool { return strings.Contains(path.Base(p), ".") || path.Base(p) == "testdata" })
}

// ofFeature returns what a feature or its row may import, nil for other packages.
func ofFeature(dir string) []string {
	switch {
	case slices.Contains(featureRows(), dir):
		return append([]string{"internal/feature/row", "internal/kv", "internal/meter", "internal/refusal"}, lower[dir]...)
	case path.Dir(dir) == "internal/feature" && dir != "internal/feature/all" && dir != "internal/feature/row" && dir != "internal/feature/rows":
		may := append(ofRole("internal/control"), featuresMay...)
		may = slices.DeleteFunc(may, func(p string) bool { return slices.Contains(featureRows(), p) })
		return append(may, slices.DeleteFunc(featureRows(), func(p string) bool { return path.Dir(p) != dir })...)
	}
	return nil
}

// ofRole are what a role, its parts and what stands on it may import.
func ofRole(role string) []string {
	may := slices.Clone(rolesMay)
	for part, of := range partsOf {
		if of == role {
			may = append(may, part)
		}
	}
	return may
}

// top are the roots of layer 4, which may import everything.
var top = []string{"pkg/agent", "pkg/replay", "cmd", "examples", "bench", "chaos", "e2e", "sim",
	"internal/commandtest", "internal/natstest", "internal/openapitest", "internal/nodetest", "internal/control/controltest", "internal/transfer/transfertest",
	"pkg/actor", "internal/feature", "internal/host", "internal/cli", "internal/datadir", "internal/print", "internal/doctor", "internal/setup", "internal/faultserver", "internal/freeport", "internal/gatewaylog", "internal/lkj", "internal/mcppins", "internal/mcpserve", "internal/metrics",
	"internal/parity", "internal/permissions", "internal/replaycmd", "internal/role", "internal/modelrequests", "internal/runprint", "internal/interactive", "internal/terminal", "internal/watch", "internal/compose", "internal/certs", "internal/upgrade", "internal/telemetry/otlptest"}

// worlds are packages of tests that are large enough for ordinary files. Nobody imports
// them.
var worlds = []string{"e2e", "sim"}

func under(dir string, roots []string) bool {
	return slices.ContainsFunc(roots, func(r string) bool { return dir == r || strings.HasPrefix(dir, r+"/") })
}

// portOf returns the port that the package is an adapter of, or "".
func portOf(dir string) string {
	if port := innerAdapters[dir]; port != "" {
		return port
	}
	if parent := path.Dir(dir); ports[parent] != nil {
		return parent
	}
	return ""
}

// mayImport returns what a package of the module may import of it; everything
// is true for the top layer, known false for a package that has no layer.
func mayImport(dir string) (may []string, everything, known bool) {
	switch {
	case ofFeature(dir) != nil:
		return ofFeature(dir), false, true
	case suites[dir] != "":
		of := suites[dir]
		return append(slices.Clone(lower[of]), of, "internal/journaltest/simtest", "internal/journalcheck", "internal/effects", "internal/callname", "internal/groupcommit", "internal/ports", "internal/kv", "internal/buckets", "internal/feature/rows"), false, lower[of] != nil || slices.Contains(roles, of)
	case lower[dir] != nil:
		return lower[dir], false, true
	case portOf(dir) != "":
		return append(slices.Clone(inner[dir]), ports[portOf(dir)]...), false, true
	case slices.Contains(roles, dir):
		return ofRole(dir), false, true
	case partsOf[dir] != "":
		return ofRole(partsOf[dir]), false, true
	case onTop[dir] != "":
		may = append(ofRole(onTop[dir]), onTop[dir], "internal/httpserver", "internal/feature/rows")
		may = append(may, featureRows()...)
		for part := range onTop {
			if onTop[path.Dir(part)] == onTop[dir] {
				may = append(may, part) // the parts of the HTTP API serve every face of it
			}
		}
		return may, false, true
	case dir == "internal/feature/rows":
		return append(featureRows(), "internal/feature/row", "internal/buckets", "internal/kv", "internal/meter", "internal/refusal"), false, true
	case under(dir, top), dir == ".":
		return nil, true, true
	}
	return nil, false, false
}

func TestImportsPointDown(t *testing.T) {
	for dir, s := range sources(t) {
		own, _ := s.internal()
		may, everything, known := mayImport(dir)
		if !known {
			t.Errorf("%s has no layer: say in layers_test.go what it may import, or put it where its layer is", dir)
			continue
		}
		for _, p := range own {
			file := s.imports[module+"/"+p]
			switch {
			case slices.Contains(worlds, p):
				t.Errorf("%s imports %s, which is for its own tests alone", file, p)
			case suites[p] != "" && suites[dir] == "" && !slices.Contains(worlds, dir):
				t.Errorf("%s imports %s, which is for tests: import it from a _test.go file", file, p)
			case !everything && under(p, top) && !slices.Contains(may, p):
				t.Errorf("%s imports %s, which is a layer above: hand in what is needed through a Config", file, p)
			case everything || slices.Contains(may, p) || (suites[dir] != "" && suites[p] != ""):
			case slices.Contains(roles, dir) && slices.Contains(roles, p):
				t.Errorf("%s imports the role %s: roles meet on the bus; move what both need into a lower package", file, p)
			case portOf(dir) != "" && portOf(p) != "":
				t.Errorf("%s imports the adapter %s: adapters do not know each other; move what both need into their port", file, p)
			default:
				t.Errorf("%s imports %s: %s may import only %v; take an interface instead, or move the code to where it belongs", file, p, dir, may)
			}
		}
	}
}

func TestOutsideLibraries(t *testing.T) {
	for dir, s := range sources(t) {
		_, outside := s.internal()
		if slices.Contains(stdOnly, dir) && len(outside) > 0 {
			t.Errorf("%s imports %v: %s is built on the standard library alone; put the library behind its port", s.imports[outside[0]], outside, dir)
		}
		vendors := map[string]bool{}
		for _, p := range outside {
			if slices.Contains(formats, p) {
				continue
			}
			parts := strings.Split(p, "/")
			vendors[strings.Join(parts[:min(2, len(parts))], "/")] = true
		}
		if portOf(dir) != "" && suites[dir] == "" && len(vendors) > 1 {
			t.Errorf("%s needs %v: an adapter stands for one outside library; split it", dir, slices.Sorted(maps.Keys(vendors)))
		}
	}
}

// TestOneBusAdapter: only one adapter knows JetStream's API, so that only one
// has to know what JetStream really does. bench and chaos are the exceptions: one
// measures the bare loop beside ours, the other reads the log without our code.
// servicetool asks NATS services, not JetStream.
func TestOneBusAdapter(t *testing.T) {
	jetstream, client := []string{"internal/natsbus", "internal/natsbus/api", "bench", "chaos"}, []string{"internal/natsbus", "internal/natsbus/api", "internal/natsbus/pull", "internal/natsbus/recent", "internal/natsconn", "pkg/journal/natsbus", "pkg/embedded", "pkg/tool/servicetool"}
	for dir, s := range sources(t) {
		for p, file := range s.imports {
			if !strings.HasPrefix(p, "github.com/nats-io/nats.go") {
				continue
			}
			if strings.HasSuffix(p, "/jetstream") && !slices.Contains(jetstream, dir) {
				t.Errorf("%s imports jetstream: only internal/natsbus and below may; use the port in pkg/journal", file)
			}
			if !slices.Contains(client, dir) && !under(dir, top) {
				t.Errorf("%s imports %s: only the bus adapter, the embedded server and mains may; use the port in pkg/journal", file, p)
			}
		}
	}
}

// Commands on runs know no HTTP: programs in the same process call them.
func TestControlKnowsNoHTTP(t *testing.T) {
	for dir, s := range sources(t) {
		if dir != "internal/control" && partsOf[dir] != "internal/control" && dir != "internal/runstart" && dir != "internal/refusal" {
			continue
		}
		if file := s.imports["net/http"]; file != "" {
			t.Errorf("%s imports net/http: %s is used without HTTP too; put it into internal/httpapi", file, dir)
		}
	}
}

// impure are imports that bring time, chance or the outside world.
var impure = []string{
	"crypto/rand", "database", "embed", "io/fs", "io/ioutil", "log", "math/rand", "net", "os", "path/filepath", "plugin", "runtime", "sync", "syscall", "testing", "unsafe",
}

// clocks are what package time has besides values.
var clocks = []string{"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until", "Local", "LoadLocation"}

func TestTheCoreIsPure(t *testing.T) {
	all := sources(t)
	for _, dir := range []string{"pkg/events", "pkg/reducer", "internal/effects", "internal/callname"} {
		s := all[dir]
		require.NotNil(t, s, dir)
		for p, file := range s.imports {
			if under(p, impure) {
				t.Errorf("%s imports %s: %s is pure; take what is needed as an argument", file, p, dir)
			}
		}
		for file, parsed := range s.files {
			ast.Inspect(parsed, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clocks, n.Sel.Name) {
						t.Errorf("%s uses time.%s: times come in events", file, n.Sel.Name)
					}
				case *ast.ImportSpec:
					if n.Name != nil {
						t.Errorf("%s renames the import %s: this test goes by names", file, n.Path.Value)
					}
				case *ast.GoStmt, *ast.SelectStmt:
					t.Errorf("%s starts a goroutine or waits: %s is a function of its arguments", file, dir)
				}
				return true
			})
		}
	}
}

func TestPackagesAreNamedAfterWhatTheyProvide(t *testing.T) {
	banned := []string{"util", "utils", "common", "types", "config", "models", "errors", "helper", "helpers", "misc", "shared"}
	for dir, s := range sources(t) {
		if slices.Contains(banned, s.name) || slices.Contains(banned, path.Base(dir)) {
			t.Errorf("%s: a package is named after what it provides, not %q; move its parts to where they are used", dir, s.name)
		}
	}
}

func TestEveryPackageHasAComment(t *testing.T) {
	for dir, s := range sources(t) {
		if !s.comment {
			t.Errorf("%s has no package comment: say in doc.go what it promises on order, blocking and ownership", dir)
		}
	}
}

const mostLines = 600

// The documents of the structure name only packages that are there.
func TestDocumentsNameRealPackages(t *testing.T) {
	for _, name := range []string{"doc.go", "ARCHITECTURE.md"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, named := range regexp.MustCompile(`\b(internal|pkg|cmd)/[a-z0-9_/]+(\.go)?`).FindAllString(string(text), -1) {
			_, err := os.Stat(strings.TrimSuffix(named, "/"))
			require.NoError(t, err, "%s: %s", name, named)
		}
	}
}

func TestFilesStayShort(t *testing.T) {
	for _, s := range sources(t) {
		for file, lines := range s.lines {
			if lines > mostLines {
				t.Errorf("%s has %d lines, more than %d: split it by what its parts do", file, lines, mostLines)
			}
		}
	}
}

// What a run says may control a terminal, so only one package has the process's
// own stdout and stderr, and everything else writes to what it makes of them.
func TestNobodyWritesPastTheTerminal(t *testing.T) {
	past := []string{"os.Stdout", "os.Stderr", "fmt.Print", "fmt.Printf", "fmt.Println"}
	for dir, s := range sources(t) {
		if !strings.HasPrefix(dir, "cmd/") && !strings.HasPrefix(dir, "internal/") && !strings.HasPrefix(dir, "pkg/") ||
			dir == "internal/terminal" || dir == "internal/parity/ran" { // the latter prints names of tests
			continue
		}
		for file, parsed := range s.files {
			ast.Inspect(parsed, func(n ast.Node) bool {
				if selector, ok := n.(*ast.SelectorExpr); ok {
					if x, ok := selector.X.(*ast.Ident); ok {
						require.NotContains(t, past, x.Name+"."+selector.Sel.Name, "%s: write to terminal.Stdout or terminal.Stderr", file)
					}
				}
				return true
			})
		}
	}
}
