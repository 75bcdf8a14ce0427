// Package callctx carries what the tool of one call may use of its actor: the agent's
// memory, and storage for binary data. Both are values of the call's context. It also carries back
// the sandbox of the call's program.
package callctx

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"strings"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Verb is what an [Action] does to memory.
type Verb string

// The verbs.
const (
	// Add puts an entry into working memory and replaces one with the same tags.
	Add Verb = "add"
	// Remove removes the entry with exactly these tags from working memory.
	Remove Verb = "remove"
	// Load copies the stored entries that have all of the tags into working memory.
	Load Verb = "load"
	// Save puts an entry into storage and replaces one with the same tags.
	Save Verb = "save"
	// Search lists the stored entries that have all of the tags and contain the value.
	// It changes nothing.
	Search Verb = "search"
)

// Action is a change or a use of an agent's memory. Tags are as the model gave them.
type Action struct {
	Verb  Verb
	Tags  []string
	Value string
}

// Memory carries out an action on the agent's memory and returns the text for the model.
// It is safe for concurrent use.
type Memory = func(ctx context.Context, a Action) (string, error)

// Store stores data that is not text, such as an image, with the call's result. The media
// type may be empty. It returns where the data is: `<bucket>/<key>`. A model that takes data
// of that type is shown it. It is safe for concurrent use.
type Store = func(ctx context.Context, mediaType string, data []byte) (where string, err error)

// Question puts a question to a human and returns nil if there is an answer that fits, else the
// error with which the call has to end: it is made again when a human has answered. The same
// question is asked with the same text. fits reads the answer and returns why it is of no use.
// It is safe for concurrent use.
type Question = func(text string, fits func(answer string) error) error

// Answer is what a human said to a question of the call. State is what its tool gave with the
// question.
type Answer struct{ Question, Text, State string }

// Dialogue is what a tool that keeps its own conversation needs of a human. Its questions are
// never compared: each that is put is a new one.
type Dialogue struct {
	// Answers are those that the call has had so far, in order.
	Answers []Answer
	// Put puts a question. The tool then ends with an error, and runs again when a human has
	// answered. state comes back with the answer. It has to be short, and is in the log. The
	// error is the call's result where nobody can be asked. It is safe for concurrent use.
	Put func(text, state string)
}

type (
	memoryKey   struct{}
	storeKey    struct{}
	questionKey struct{}
	dialogueKey struct{}
	unwantedKey struct{}
)

// WithDialogue returns a context whose tool may converse with a human.
func WithDialogue(ctx context.Context, d Dialogue) context.Context {
	return context.WithValue(ctx, dialogueKey{}, d)
}

// DialogueOf returns what the tool of ctx may ask. Without anyone to ask, nothing becomes of its
// questions.
func DialogueOf(ctx context.Context) Dialogue {
	if d, ok := ctx.Value(dialogueKey{}).(Dialogue); ok {
		return d
	}
	return Dialogue{Put: func(string, string) {}}
}

// WithQuestion returns a context whose tool may ask a human.
func WithQuestion(ctx context.Context, ask Question) context.Context {
	return context.WithValue(ctx, questionKey{}, ask)
}

// Ask asks a human for the tool of ctx, see [Question]. Without anyone to ask, it is an error.
func Ask(ctx context.Context, text string, fits func(answer string) error) error {
	if ask, ok := ctx.Value(questionKey{}).(Question); ok {
		return ask(text, fits)
	}
	return tool.Failf(codes.InputRequired, "a human would have to answer, and nobody can be asked here: %s", text)
}

// WithUnwanted returns a context whose tool may ask why the context has ended. cause is the cause
// that ctx has if the call's result is no longer wanted.
func WithUnwanted(ctx context.Context, cause error) context.Context {
	return context.WithValue(ctx, unwantedKey{}, cause)
}

// Unwanted reports whether the context of a call has ended because nobody wants the result any
// more. It is false if the process ends: then another one may carry out the call again.
func Unwanted(ctx context.Context) bool {
	cause, ok := ctx.Value(unwantedKey{}).(error)
	return ok && errors.Is(context.Cause(ctx), cause)
}

// WithMemory returns a context whose tool may use memory.
func WithMemory(ctx context.Context, memory Memory) context.Context {
	return context.WithValue(ctx, memoryKey{}, memory)
}

// MemoryOf returns the memory that the tool of ctx may use, or nil.
func MemoryOf(ctx context.Context) Memory {
	memory, _ := ctx.Value(memoryKey{}).(Memory)
	return memory
}

// WithStore returns a context whose tool may store data.
func WithStore(ctx context.Context, store Store) context.Context {
	return context.WithValue(ctx, storeKey{}, store)
}

// StoreOf returns what stores data for the tool of ctx, or nil.
func StoreOf(ctx context.Context) Store {
	store, _ := ctx.Value(storeKey{}).(Store)
	return store
}

// Stored stores data that is not text with the call's result, as far as that is possible, and
// returns what it is and where, for the text of the result. what is its kind, such as image,
// and named its media type as the tool gave it, which may be empty.
func Stored(ctx context.Context, what, named string, data []byte) string {
	if named != "" {
		what += " " + named
	}
	what = fmt.Sprintf("%s, %d bytes", what, len(data))
	store := StoreOf(ctx)
	if store == nil {
		return "[" + what + ", not kept]"
	}
	mediaType, _, err := mime.ParseMediaType(named)
	if err != nil {
		mediaType = "" // it cannot be read
	}
	where, err := store(ctx, mediaType, data)
	if err != nil {
		return "[" + what + ", could not be kept: " + err.Error() + "]"
	}
	return "[" + what + ", kept as " + where + "]"
}

// Text returns the body of a tool's reply as the text of the result. An image or a PDF, as
// its media type says, whose bytes are no text is kept instead.
func Text(ctx context.Context, mediaType, body string) string {
	image := strings.HasPrefix(mediaType, "image/")
	if !image && !strings.HasPrefix(mediaType, "application/pdf") || utf8.ValidString(body) {
		return body
	}
	what := "file"
	if image {
		what = "image"
	}
	return Stored(ctx, what, mediaType, []byte(body))
}

type sandboxKey struct{}

// WithSandbox has the program of a tool say what held it, with note. The last call of note counts.
func WithSandbox(ctx context.Context, note func(held []string)) context.Context {
	return context.WithValue(ctx, sandboxKey{}, note)
}

// NoteSandbox says what held the program of the tool of ctx: the parts of a sandbox, or off.
func NoteSandbox(ctx context.Context, held []string) {
	if note, is := ctx.Value(sandboxKey{}).(func([]string)); is {
		note(held)
	}
}

// UsesMemory reports whether the tool acts on memory: whether it, or a tool that it
// wraps (by an Unwrap method), has a method UsesMemory.
func UsesMemory(t tool.Tool) bool {
	for t != nil {
		if _, ok := t.(interface{ UsesMemory() }); ok {
			return true
		}
		wrapper, ok := t.(interface{ Unwrap() tool.Tool })
		if !ok {
			return false
		}
		t = wrapper.Unwrap()
	}
	return false
}
