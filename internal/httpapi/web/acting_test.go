package web_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// script imports the module of app and runs the checks, which use equal.
func script(t *testing.T, module, names, checks string) {
	t.Helper()
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("reason: node is missing; this test runs modules of the console with it")
	}
	file, err := filepath.Abs(filepath.Join("app", module))
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "node", "--input-type=module", "--experimental-default-type=module", "--harmony-json-parse-with-source", "--eval",
		`import { `+names+` } from "`+file+`"; import { deepStrictEqual as equal } from "node:assert";`+checks)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}

// A person who changes one argument leaves the others as the model wrote them.
func TestNumbersStayAsTheyWereWritten(t *testing.T) {
	script(t, "acting/exact.js", "isNumber, number, parse, write", `
		const text = '{"a":9007199254740993,"b":1.10,"c":[1e400,-0],"d":1}';
		const value = parse(text);
		equal(write(value), text);
		equal(isNumber(value.a) && isNumber(value.d) && !isNumber("1"), true);
		value.d = number("123456789012345678901234567890");
		equal(write(value).endsWith('"d":123456789012345678901234567890}'), true);
	`)
}

// The steps lead from one text to the other, by as few lines as possible.
func TestLineDiff(t *testing.T) {
	script(t, "acting/linediff.js", "steps", `
		equal(steps(["a", "b", "c"], ["a", "x", "c", "d"]), [[" ", "a"], ["-", "b"], ["+", "x"], [" ", "c"], ["+", "d"]]);
		equal(steps([], ["a"]), [["+", "a"]]);
		let seed = 1;
		const random = n => (seed = seed * 16807 % 2147483647) % n;
		for (let i = 0; i < 300; i++) {
			const [a, b] = [0, 0].map(() => Array.from({ length: random(9) }, () => "abc"[random(3)]));
			const all = steps(a, b);
			equal(all.filter(([op]) => op !== "+").map(([, line]) => line), a);
			equal(all.filter(([op]) => op !== "-").map(([, line]) => line), b);
			const most = (x, y) => x < a.length && y < b.length ? a[x] === b[y] ? 1 + most(x + 1, y + 1) : Math.max(most(x + 1, y), most(x, y + 1)) : 0;
			equal(all.filter(([op]) => op === " ").length, most(0, 0));
		}
	`)
}
