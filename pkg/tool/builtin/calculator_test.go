package builtin

import (
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/apd/v3"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/tooltest"
	"github.com/moorebus/moorebus/pkg/tool"
)

func TestEvaluate(t *testing.T) {
	for expression, want := range map[string]string{
		"409.5+12":                  "421.5",
		"17.5% * 2,340 + 12":        "421.5",
		"17.5% of 2,340 + 12":       "421.5",
		"(17.5%)*(2,340)+12":        "421.5",
		"0.1 + 0.2":                 "0.3",
		"1/3":                       "0.3333333333333333333333333333333333",
		"1/3*3":                     "1",
		"2+3*4":                     "14",
		"(2+3)*4":                   "20",
		"2-3-4":                     "-5",
		"2^3^2":                     "512",
		"2**10":                     "1024",
		"-2^2":                      "-4",
		"(-2)^2":                    "4",
		"2^-2":                      "0.25",
		"2^0.5*2^0.5":               "2",
		"--3":                       "3",
		"+-3":                       "-3",
		"10 % 4":                    "2",
		"-7 % 3":                    "-1",
		"7 % (-3)":                  "1",
		"7.5%2":                     "1.5",
		"10%":                       "0.1",
		"10% + 4":                   "4.1",
		"10% - 4":                   "-3.9",
		"10%%":                      "0.001",
		"(5+5)% * 200":              "20",
		"50%(3)":                    "2",
		"10 % max(3, 4)":            "2",
		"1e3":                       "1000",
		"1.5E-3":                    "0.0015",
		"2e+2":                      "200",
		".5":                        "0.5",
		"5.":                        "5",
		"1,234,567.25":              "1234567.25",
		"max(1,234)":                "234",
		"max((2,340), 7)":           "2340",
		"min(3, -1, 2)":             "-1",
		"sqrt(2)^2":                 "2",
		"SQRT(16)":                  "4",
		"abs(-3.20)":                "3.2",
		"round(2.5)":                "3",
		"round(-2.5)":               "-3",
		"round(1.005, 2)":           "1.01",
		"round(1234, -2)":           "1200",
		"round(1e6000, 3) / 1e6000": "1",
		"floor(-1.5)":               "-2",
		"ceil(1.2)":                 "2",
		"6 × 7 ÷ 2 − 1":             "20",
		"100 / 8":                   "12.5",
		"1200":                      "1200",
		"10^33":                     "1" + strings.Repeat("0", 33),
		"10^40":                     "1e+40",
		"-0":                        "0",
		"0 * -1":                    "0",
		"2^100":                     "1267650600228229401496703205376",
		"1e6000 % 7":                "1",
		" \t1 \n+ 1 ":               "2",
	} {
		got, err := evaluate(expression)
		require.NoError(t, err, expression)
		require.Equal(t, want, got, expression)
	}
}

func TestEvaluateRefuses(t *testing.T) {
	for expression, want := range map[string]string{
		"":                               "empty",
		"  ":                             "empty",
		"1/0":                            "division by zero",
		"1/(2-2)":                        "division by zero",
		"5 % 0":                          "division by zero",
		"0^-1":                           "division by zero",
		"0/0":                            "undefined",
		"0^0":                            "undefined",
		"sqrt(-1)":                       "no real square root",
		"(-8)^(1/3)":                     "no real power",
		"9^9^9^9":                        "too large",
		"-9^9^9":                         "too large",
		"0.5^9^9^9":                      "too",
		"1.0000001^9^9":                  "exponent is too large",
		"1e6144*10":                      "too large",
		"1e-6144/1000":                   "too close to zero",
		"1e999999999":                    "too large",
		"1e99999":                        "too large",
		"1 +":                            "ends too early",
		"(1":                             "closing parenthesis is missing",
		"1)":                             `unexpected ")" at byte 1`,
		"1 2":                            `unexpected "2" at byte 2`,
		"1,23":                           "misplaced comma",
		"1234,567":                       "misplaced comma",
		"1,2345":                         "misplaced comma",
		"round(2,340.567, 2)":            "comma separates",
		"sqrt(2,340)":                    "comma separates",
		"sqrt()":                         `unexpected ")"`,
		"sqrt 4":                         "parentheses",
		"system(1)":                      "unknown name",
		"x":                              "unknown name",
		"1..2":                           "malformed number",
		"1x":                             "malformed number",
		".":                              "unexpected",
		"1 = 1":                          `unexpected "="`,
		"os.Exit(1)":                     "unknown name",
		"1 of":                           "ends too early",
		"\xff":                           "unexpected",
		"round(1, 1e9)":                  "digits of round",
		strings.Repeat("(", 500) + "1":   "nested",
		strings.Repeat("-", 500) + "1":   "nested",
		strings.Repeat("2^", 500) + "1":  "nested",
		strings.Repeat("1+", 5000) + "1": "more than the 4096",
	} {
		start := time.Now()
		got, err := evaluate(expression)
		require.ErrorContains(t, err, want, "%s = %s", expression, got)
		require.Less(t, time.Since(start), 10*time.Second, expression)
	}
}

func TestCalculatorSuite(t *testing.T) {
	calculator := func(arguments string) tooltest.Case {
		c, err := New(Calculator, Options{})
		require.NoError(t, err)
		return tooltest.Case{Tool: c, Arguments: arguments}
	}
	tooltest.Suite{
		Success: func(*testing.T) tooltest.Case {
			c := calculator(`{"expression":"2,340 * 17.5%"}`)
			c.Want = "409.5"
			return c
		},
		Failure: func(*testing.T) tooltest.Case {
			c := calculator(`{"expression":"1/0"}`)
			c.Code, c.Want = tool.CodeFailed, "division by zero"
			return c
		},
	}.Run(t)
}

func TestArgumentsAreStrict(t *testing.T) {
	c, err := New(Calculator, Options{})
	require.NoError(t, err)
	for _, arguments := range []string{`{"expression":"1","code":"x"}`, `{"expression":1}`, `{"expression":"1"}{}`, `[`, `"1"`} {
		_, err := c.Run(t.Context(), tool.Call{Arguments: arguments})
		var f *tool.Failure
		require.ErrorAs(t, err, &f, arguments)
		require.Equal(t, tool.CodeInvalidArguments, f.Code)
	}
}

func FuzzEvaluate(f *testing.F) {
	for _, seed := range []string{
		"17.5% of 2,340 + 12", "9^9^9^9", "-2^-2 % 3", "round(1.005, 2)", "max(1,234)", "1e6144%7", "sqrt(2)^0.3", "((1))", "1e-6000*2^-300",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, expression string) {
		start := time.Now()
		got, err := evaluate(expression)
		if took := time.Since(start); took > 20*time.Second {
			t.Fatalf("took %s", took)
		}
		if err != nil {
			return
		}
		// What is printed is a number that evaluates to itself.
		if _, _, err := apd.NewFromString(got); err != nil {
			t.Fatalf("%q gave %q: %v", expression, got, err)
		}
		if again, err := evaluate(got); err != nil || again != got {
			t.Fatalf("%q gave %q, which gave %q, %v", expression, got, again, err)
		}
	})
}
