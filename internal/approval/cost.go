package approval

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"regexp/syntax"
	"slices"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/builtin"
	"github.com/expr-lang/expr/vm/runtime"
)

// An expression comes from whoever may define agents, and its data from a model.
// So every evaluation has a budget of steps. expr-lang has no such bound: its
// own budget counts the elements of new lists and maps. The compiler therefore
// rewrites every part of an expression whose cost depends on the data into a call
// that pays for it first:
//
//   - each pass through the body of a loop (all, map, reduce, ...) pays for the
//     nodes of the body and for the size of its result;
//   - operators and functions pay for the size of their operands, a regular
//     expression for text times program, and the functions of [growing] for the
//     product of their operands.
//
// Steps are counted and time is not measured, so planner and actor agree on every
// machine. A step is worth at most some 100 ns and some 64 bytes.
const maxSteps = 1_000_000

const (
	// maxExpr bounds an expression, and so what compiling it costs, in bytes.
	maxExpr = 8 << 10
	// maxArguments bounds the arguments that are parsed, in bytes. No event holds
	// larger ones.
	maxArguments = 1 << 20
)

// errCost is the reason of an evaluation that was given up.
var errCost = fmt.Errorf("it takes more than %d steps with these arguments", maxSteps)

// The functions that the rewritten expression calls. No expression can name them:
// [naming] refuses the one way to names that are no identifiers.
const (
	payName     = "pay!"
	growName    = "grow!"
	matchesName = "matches!"
)

// growing are the functions whose cost or result may be as large as the product
// of their operands.
var growing = []string{"join", "repeat", "replace", "uniq"}

// slow are the functions that read a time zone's file, with their extra cost.
var slow = map[string]int{"date": 2000, "timezone": 2000}

// naming finds expressions that look names up in their environment, and the texts that an
// expression may use as keys.
type naming struct {
	looksUp bool
	texts   map[string][]string
}

// Visit is called for every node.
func (n *naming) Visit(node *ast.Node) {
	if id, ok := (*node).(*ast.IdentifierNode); ok && id.Value == "$env" {
		n.looksUp = true
	}
	if text, ok := (*node).(*ast.StringNode); ok {
		n.texts[folded(text.Value)] = append(n.texts[folded(text.Value)], text.Value)
	}
}

// metering rewrites an expression so that it pays for what it does.
type metering struct{}

// Visit is called for every node, after its children.
func (metering) Visit(node *ast.Node) {
	switch n := (*node).(type) {
	case *ast.BinaryNode:
		switch n.Operator {
		case "and", "or", "&&", "||", "??":
		case "matches":
			ast.Patch(node, call(matchesName, n.Left, compiled(n.Right)))
		default:
			numbers := mayBeNumber(n.Left) && mayBeNumber(n.Right)
			_, constant := n.Left.(*ast.StringNode)
			pay(&n.Left, 0)
			pay(&n.Right, 0)
			if numbers && slices.Contains(computed, n.Operator) || n.Operator == "in" && !constant {
				ast.Patch(node, call(computeName, &ast.StringNode{Value: n.Operator}, n.Left, n.Right))
			}
		}
	case *ast.BuiltinNode:
		if slices.Contains(growing, n.Name) {
			ast.Patch(node, call(growName, append([]ast.Node{&ast.StringNode{Value: n.Name}}, n.Arguments...)...))
			return
		}
		switch {
		case n.Name == "sum" && len(n.Arguments) == 2:
			ast.Patch(node, call(sumName, &ast.BuiltinNode{Name: "map", Arguments: n.Arguments}))
			return
		case n.Name == "sum":
			ast.Patch(node, call(sumName, n.Arguments...))
			return
		case slices.Contains(reading, n.Name):
			ast.Patch(node, call(readName, append([]ast.Node{&ast.StringNode{Value: n.Name}}, n.Arguments...)...))
			return
		}
		if n.Name == "get" && len(n.Arguments) == 2 {
			lookUp(&n.Arguments[1])
		}
		if !slices.ContainsFunc(n.Arguments, isPredicate) { // a loop pays in its body
			payAll(n.Arguments, slow[n.Name])
		}
	case *ast.PredicateNode:
		var nodes counting
		ast.Walk(&n.Node, &nodes)
		n.Node = call(payName, n.Node, &ast.IntegerNode{Value: int(nodes)})
	case *ast.CallNode:
		payAll(n.Arguments, 0)
	case *ast.MemberNode:
		lookUp(&n.Property)
	case *ast.PairNode:
		lookUp(&n.Key)
	}
}

type counting int

// Visit counts a node.
func (c *counting) Visit(*ast.Node) { *c++ }

func isPredicate(n ast.Node) bool {
	_, is := n.(*ast.PredicateNode)
	return is
}

func payAll(nodes []ast.Node, extra int) {
	for i := range nodes {
		pay(&nodes[i], extra)
	}
}

// pay makes the evaluation pay for the node's value, and extra steps, unless that
// costs next to nothing whatever the data are.
func pay(node *ast.Node, extra int) {
	if extra == 0 && isCheap(*node) {
		return
	}
	ast.Patch(node, call(payName, *node, &ast.IntegerNode{Value: extra}))
}

// lookUp has the evaluation pay for a key that it computes, and compare it with those of the
// arguments. [naming] has found the others.
func lookUp(key *ast.Node) {
	if !isCheap(*key) {
		ast.Patch(key, call(lookName, *key))
	}
}

func isCheap(n ast.Node) bool {
	switch n.(type) {
	case *ast.NilNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.StringNode:
		return true
	}
	switch n.Type().Kind() {
	case reflect.Bool, reflect.Int, reflect.Float64:
		return true
	}
	return false
}

func call(name string, arguments ...ast.Node) ast.Node {
	return &ast.CallNode{Callee: &ast.IdentifierNode{Value: name}, Arguments: arguments}
}

// compiled compiles a pattern that is written in the expression once. One that
// is none was reported already.
func compiled(n ast.Node) ast.Node {
	if text, ok := n.(*ast.StringNode); ok {
		if p, err := compile(text.Value); err == nil {
			return &ast.ConstantNode{Value: p}
		}
	}
	return n
}

// pattern is a regular expression and the size of its program.
type pattern struct {
	re   *regexp.Regexp
	size int
}

func compile(text string) (*pattern, error) {
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, err
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	prog, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, err
	}
	return &pattern{re: re, size: len(prog.Inst)}, nil
}

// meter counts the steps of one evaluation. Its methods panic with [errCost] when
// there are too many; the evaluation returns that as its error.
type meter struct {
	left int
	spellings
}

func (m *meter) spend(steps int) {
	if m.left -= max(steps, 0); m.left < 0 {
		panic(errCost)
	}
}

// pay takes a value and extra steps, and returns the value.
func (m *meter) pay(args ...any) any {
	extra, _ := args[1].(int)
	m.spend(extra)
	m.weigh(args[0], 0)
	return args[0]
}

// lookUp takes a key, and returns it.
func (m *meter) lookUp(args ...any) any {
	m.weigh(args[0], 0)
	return m.look(args[0])
}

// weigh spends what a value at that depth of another one costs to walk through,
// to copy or to print, and returns how much that was.
func (m *meter) weigh(v any, depth int) int {
	before := m.left
	m.spend(1 + depth/8)
	switch v := v.(type) {
	case nil, bool, int, float64:
	case string:
		m.spend(len(v) / 8)
	case large:
		m.spend(len(v.text) / 8)
	case []any:
		for _, e := range v {
			m.weigh(e, depth+1)
		}
	case map[string]any:
		for key, e := range v {
			m.spend(len(key) / 8)
			m.weigh(e, depth+1)
		}
	default:
		m.weighOther(reflect.ValueOf(v), depth+1)
	}
	return before - m.left
}

// weighOther is weigh for what functions make, and for the environment.
func (m *meter) weighOther(v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			m.weigh(v.Index(i).Interface(), depth)
		}
	case reflect.Map:
		for pairs := v.MapRange(); pairs.Next(); {
			m.weigh(pairs.Key().Interface(), depth)
			m.weigh(pairs.Value().Interface(), depth)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				m.weigh(v.Field(i).Interface(), depth)
			}
		}
	}
}

// grow calls one of the functions of [growing].
func (m *meter) grow(args ...any) any {
	name, _ := args[0].(string)
	if !slices.Contains(growing, name) {
		panic(fmt.Errorf("%q is not priced", name))
	}
	args = args[1:]
	sizes := make([]int, len(args))
	for i, arg := range args {
		sizes[i] = m.weigh(arg, 0)
	}
	switch {
	case name == "uniq" && len(args) == 1:
		m.spend(sizes[0] * sizes[0])
	case name == "repeat" && len(args) == 2:
		m.spend(sizes[0] * min(max(runtime.ToInt(args[1]), 0), maxSteps))
	case name == "replace" && len(args) >= 3:
		m.spend(sizes[0] * sizes[2])
	case name == "join" && len(args) == 2:
		m.spend(sizes[0] * sizes[1])
	}
	f := builtin.Builtins[builtin.Index[name]]
	var result any
	var err error
	if f.Safe != nil {
		result, _, err = f.Safe(args...)
	} else {
		result, err = f.Func(args...)
	}
	if err != nil {
		panic(err)
	}
	return result
}

// matches is the operator of that name.
func (m *meter) matches(args ...any) any {
	if args[0] == nil || args[1] == nil {
		return false
	}
	text, ok := args[0].(string)
	if !ok {
		panic(fmt.Errorf("matches wants a text, not %T", args[0]))
	}
	p, ok := args[1].(*pattern)
	if !ok {
		source, ok := args[1].(string)
		if !ok {
			panic(errors.New("matches wants a regular expression"))
		}
		m.spend(64 * len(source))
		var err error
		if p, err = compile(source); err != nil {
			panic(err)
		}
	}
	m.spend(1 + (1+len(text))*p.size/8)
	return p.re.MatchString(text)
}
