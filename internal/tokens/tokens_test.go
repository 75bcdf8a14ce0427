package tokens_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/tokens"
)

func TestByBytes4(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"": 0, "a": 1, "abcd": 1, "abcde": 2, "äö": 1} {
		require.Equal(t, want, tokens.ByBytes4(text), text)
	}
}

func TestSet(t *testing.T) {
	t.Parallel()
	words := tokens.Set{"words": func(string) int { return 7 }}
	for _, s := range []tokens.Set{nil, {}, words} {
		for _, name := range []string{"", tokens.Bytes4} {
			e, err := s.Named(name)
			require.NoError(t, err)
			require.Equal(t, 2, e("abcde"))
		}
	}
	e, err := words.Named("words")
	require.NoError(t, err)
	require.Equal(t, 7, e(""))
	err = words.Check("o201k")
	require.EqualError(t, err, `token_estimator: "o201k" is not known; there are: bytes/4, words`)
	require.Equal(t, 2, words.Or("o201k")("abcde"), "a run goes on with the rule of thumb")
	require.Equal(t, 7, words.Or("words")(""))
	own := words.With(tokens.Set{tokens.Bytes4: func(string) int { return 9 }})
	require.Equal(t, 9, own.Or("")("abcde"), "a name can be given to another estimator")
	require.Equal(t, 2, words.Or("")("abcde"), "and the set that it was made of stays")
}
