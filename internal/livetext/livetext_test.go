package livetext_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/livetext"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// asked counts questions.
type asked struct {
	journal.Feed
	times int
}

func (a *asked) AskCatchUp(events.Run) error { a.times++; return nil }

func part(message string, offset int, text string) livetext.Chunk {
	return livetext.Chunk{MessageID: message, Offset: offset, Text: text}
}

func again(message string, offset int, text string) livetext.Chunk {
	return livetext.Chunk{MessageID: message, Offset: offset, Text: text, CatchUp: true}
}

// hears gives a listener chunks and returns what it says is news, as
// "offset:text".
func hears(t *testing.T, l *livetext.Listener, chunks ...livetext.Chunk) string {
	t.Helper()
	var news []string
	for _, c := range chunks {
		data, err := json.Marshal(c)
		require.NoError(t, err)
		if c, ok := l.Hear(data); ok {
			require.False(t, c.CatchUp)
			news = append(news, fmt.Sprint(c.Offset, ":", c.Text))
		}
	}
	return strings.Join(news, " ")
}

func TestListener(t *testing.T) {
	for _, c := range []struct {
		name   string
		chunks []livetext.Chunk
		want   string
		asks   int
	}{
		{"from the beginning", []livetext.Chunk{part("m", 0, "ab"), part("m", 2, "c")}, "0:ab 2:c", 0},
		{"one message after another", []livetext.Chunk{part("m", 0, "ab"), part("n", 0, "c")}, "0:ab 0:c", 0},
		{"late", []livetext.Chunk{part("m", 2, "c"), part("m", 3, "d"), again("m", 0, "abcd"), part("m", 4, "e")}, "0:abcd 4:e", 1},
		{"late, in pieces", []livetext.Chunk{again("m", 0, "ab"), again("m", 2, "cd"), part("m", 4, "e")}, "0:ab 2:cd 4:e", 0},
		{"a gap", []livetext.Chunk{part("m", 0, "a"), part("m", 3, "d"), again("m", 0, "abcd")}, "0:a 1:bcd", 1},
		{"a second gap", []livetext.Chunk{
			part("m", 0, "a"), part("m", 3, "d"), again("m", 0, "abcd"), part("m", 5, "f"), again("m", 0, "abcdef"),
		}, "0:a 1:bcd 4:ef", 2},
		{"what others missed", []livetext.Chunk{part("m", 0, "ab"), again("m", 0, "ab"), part("m", 2, "c"), again("m", 0, "abc"), again("m", 1, "b")}, "0:ab 2:c", 0},
		{"it begins again", []livetext.Chunk{part("m", 0, "ab"), part("m", 0, "xyz"), part("m", 3, "!")}, "0:ab 0:xyz 3:!", 0},
		{"it begins again unheard", []livetext.Chunk{part("m", 0, "abc"), part("m", 1, "y"), part("m", 2, "z"), again("m", 0, "xyz"), part("m", 3, "!")}, "0:abc 0:xyz 3:!", 1},
		{"in the middle of the next one", []livetext.Chunk{part("m", 0, "ab"), part("n", 2, "z"), again("n", 0, "xyz")}, "0:ab 0:xyz", 1},
		{"two at once, one of them late", []livetext.Chunk{
			part("m", 0, "a"), part("n", 1, "y"), again("m", 0, "a"), again("n", 0, "xy"), part("m", 1, "b"), part("n", 2, "z"),
		}, "0:a 0:xy 1:b 2:z", 1},
		{"a catch-up without its beginning", []livetext.Chunk{again("m", 2, "cd"), again("m", 0, "abcd")}, "0:abcd", 1},
		{"no chunks at all", []livetext.Chunk{part("", 0, "a"), part("m", -1, "a"), part("m", 0, "")}, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			feed := &asked{}
			require.Equal(t, c.want, hears(t, livetext.NewListener(feed, events.Run{}), c.chunks...))
			require.Equal(t, c.asks, feed.times)
		})
	}
}

func TestListenerDropsWhatComesAfterTheEvent(t *testing.T) {
	feed := &asked{}
	l := livetext.NewListener(feed, events.Run{})
	require.Equal(t, "0:ab", hears(t, l, part("m", 0, "ab")))
	body := []byte(`{"n":2,"data":{"message_id":"m","content":"abc"}}`)
	message, text := livetext.MessageOf(body)
	require.Equal(t, "abc", text)
	l.Over(message)
	require.Empty(t, hears(t, l, part("m", 2, "c"), part("m", 9, "x"), again("m", 0, "abc")))
	message, _ = livetext.MessageOf([]byte("not JSON"))
	l.Over(message)
	require.Equal(t, "0:x", hears(t, l, part("n", 0, "x")))
	require.Zero(t, feed.times)
	_, ok := l.Hear([]byte("not JSON"))
	require.False(t, ok)
}

// Reasoning has offsets of its own, and is caught up with like text.
func TestListenerHearsReasoning(t *testing.T) {
	reasons := func(c livetext.Chunk) livetext.Chunk {
		c.Kind = livetext.KindReasoning
		return c
	}
	feed := &asked{}
	l := livetext.NewListener(feed, events.Run{})
	require.Equal(t, "0:So 2:,  0:It ", hears(t, l, reasons(part("m", 0, "So")), reasons(part("m", 2, ", ")), part("m", 0, "It ")))
	require.Empty(t, hears(t, l, reasons(part("m", 9, "then")), again("m", 0, "It ")))
	require.Equal(t, 1, feed.times)
	require.Equal(t, "4:then then 3:is", hears(t, l, reasons(again("m", 0, "So, then then")), part("m", 3, "is")))
	for kind, data := range map[string]string{
		"text":      `{"message_id":"m","offset":5,"text":"!"}`,
		"reasoning": `{"message_id":"m","offset":13,"text":"!","kind":"reasoning"}`,
	} {
		news, ok := l.News([]byte(data))
		require.True(t, ok)
		require.Contains(t, string(news), `"kind":"`+kind+`"`)
	}
	l.Over("m")
	require.Empty(t, hears(t, l, reasons(part("m", 14, "?"))))
}

// The event may come before the last chunks: what they would have said is said with it.
func TestListenerHearsTheRest(t *testing.T) {
	for _, c := range []struct {
		name          string
		heard         []livetext.Chunk
		message, text string
		want          string
	}{
		{"the half was heard", []livetext.Chunk{part("m", 0, "gr\u00f6"), part("m", 4, "\u00dfe")}, "m", "gr\u00f6\u00dfe, and more", `{"message_id":"m","offset":7,"text":", and more","kind":"text"}`},
		{"it began again", []livetext.Chunk{part("m", 0, "xx"), part("m", 0, "a")}, "m", "abc", `{"message_id":"m","offset":1,"text":"bc","kind":"text"}`},
		{"all was heard", []livetext.Chunk{part("m", 0, "abc")}, "m", "abc", ""},
		{"nothing was heard", nil, "m", "abc", ""},
		{"a beginning is missing", []livetext.Chunk{part("m", 0, "a"), part("n", 3, "x")}, "n", "abcx", ""},
		{"another message", []livetext.Chunk{part("m", 0, "a")}, "n", "abc", ""},
		{"another text", []livetext.Chunk{part("m", 0, "ab")}, "m", "xyz", ""},
		{"no message", []livetext.Chunk{part("m", 0, "ab")}, "", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := livetext.NewListener(&asked{}, events.Run{})
			hears(t, l, c.heard...)
			news, ok := l.Rest(c.message, c.text)
			require.Equal(t, c.want != "", ok)
			if ok {
				require.JSONEq(t, c.want, string(news))
			}
			if c.message != "" {
				require.Empty(t, hears(t, l, part(c.message, 0, c.text)), "what comes later is late")
			}
			_, ok = l.Rest(c.message, c.text)
			require.False(t, ok, "it is said once")
		})
	}
}

// TestListenerAsksAgain: questions and answers can be lost too.
func TestListenerAsksAgain(t *testing.T) {
	feed := &asked{}
	l := livetext.NewListener(feed, events.Run{})
	l.Ask()
	l.Ask()
	require.Equal(t, 1, feed.times, "one question stands at a time")
	for i := range 100 {
		require.Empty(t, hears(t, l, part("m", 1+i, "x")))
	}
	require.Greater(t, feed.times, 5)
	require.Less(t, feed.times, 10)
}

// TestListenersAgree plays a model that talks, begins again and is asked, to
// listeners that come late and lose chunks: each that heard the end of a message
// has all of it, whatever it missed.
func TestListenersAgree(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		feed := &asked{}
		l := livetext.NewListener(feed, events.Run{})
		text := map[string]string{} // as the listener has it
		take := func(c livetext.Chunk) {
			data, err := json.Marshal(c)
			require.NoError(t, err)
			news, ok := l.Hear(data)
			if !ok {
				return
			}
			if news.Offset == 0 {
				text[news.MessageID] = ""
			}
			require.Equal(t, len(text[news.MessageID]), news.Offset, "neither gap nor repetition")
			text[news.MessageID] += news.Text
		}
		for m := range 5 {
			message, said, began := fmt.Sprint("m", m), "", 0
			next := func(c livetext.Chunk) { c.Again = began; take(c) }
			for range 20 + r.IntN(20) {
				if r.IntN(30) == 0 {
					said, began = "", began+1
				}
				word := strings.Repeat(string(rune('a'+r.IntN(26))), 1+r.IntN(3))
				if r.IntN(4) > 0 {
					next(part(message, len(said), word))
				}
				said += word
				if before := feed.times; before > 0 && r.IntN(3) == 0 || r.IntN(20) == 0 {
					next(again(message, 0, said))
				}
			}
			next(again(message, 0, said))
			require.Equal(t, said, text[message], "seed %d", seed)
		}
	}
}

// Whatever kind a chunk is of, it is late once its message's event is known.
func TestNoNewsOfAMessageThatIsOver(t *testing.T) {
	l := livetext.NewListener(&asked{}, events.Run{})
	for _, data := range []string{`{"message_id":"m","offset":0,"text":"a"}`, `{"message_id":"m","kind":"tool_call","index":0,"text":"{}"}`} {
		_, ok := l.News([]byte(data))
		require.True(t, ok, data)
	}
	l.Over("m")
	for _, data := range []string{`{"message_id":"m","offset":1,"text":"b"}`, `{"message_id":"m","kind":"tool_call","index":0,"text":"{}"}`} {
		_, ok := l.News([]byte(data))
		require.False(t, ok, data)
	}
	_, ok := l.News([]byte(`{"message_id":"n","kind":"tool_call","index":0,"text":"{}"}`))
	require.True(t, ok)
}
