package jsondiff_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/jsondiff"
)

func TestCanonical(t *testing.T) {
	for text, want := range map[string]string{
		`{"b": [1, 2.50], "a": "<é>"}`: jsondiff.Canonical(`{"a":"<\u00e9>","b":[1.0,25e-1]}`),
		`{"a":0}`:                      jsondiff.Canonical(`{"a":-0.0}`),
		`1e400`:                        jsondiff.Canonical(`10e399`),
		`not {json`:                    `not {json`,
		`{} {}`:                        `{} {}`,
	} {
		require.Equal(t, want, jsondiff.Canonical(text))
	}
	long := "1" + strings.Repeat("0", 5000) // one spelling of it would take too long
	require.Equal(t, long, jsondiff.Canonical(long))
	require.NotEqual(t, jsondiff.Canonical(`{"a":1}`), jsondiff.Canonical(`{"a":"1"}`))
	require.NotEqual(t, jsondiff.Canonical(`9007199254740993`), jsondiff.Canonical(`9007199254740992`))
	require.True(t, json.Valid([]byte(jsondiff.Canonical(`[1e400,-1.5]`))))
}
