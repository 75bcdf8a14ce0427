package actor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/truncate"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// shownBytes bounds what a search shows of a value.
const shownBytes = 200

// remembers returns the work of a call that acts on the agent's memory, nil if it is a
// call of another tool. The action comes first, then its event, then the result. If the
// worker dies in between, the call is done again: the same tags replace.
func (a *Actor) remembers(run events.Run, mem *reducer.Memory, c call) worker.Work {
	t, ok := a.cfg.Tools.Lookup(c.Name)
	if !ok || !callctx.UsesMemory(t) {
		return nil
	}
	m := memory{
		of: entrystore.Owner{Namespace: run.Namespace, Agent: mem.Control.StorageAgent}, storage: entrystore.New(a.cfg.KV), results: a.cfg.Results,
		working: reducer.Memory{WorkingMemory: slices.Clone(mem.WorkingMemory)},
	}
	return func(ctx context.Context) worker.Result {
		out, happened := m.perform(ctx, a.cfg.Tools, c)
		result := a.outcome(ctx, c, out, nil)
		if happened == nil || ctx.Err() != nil {
			return result
		}
		return worker.Then(happened, func(context.Context) worker.Result { return result })
	}
}

// memory is what one call acts on: working memory, and the agent's storage.
type memory struct {
	of      entrystore.Owner
	storage *entrystore.Store
	results Results
	working reducer.Memory
}

// perform carries out the call's action. The event says what happened; nil: nothing did.
func (m memory) perform(ctx context.Context, tools *toolset.Registry, c call) (toolset.Outcome, events.Payload) {
	// The last attempt counts, as for the outcome. An attempt that was given up may still
	// end later.
	var mu sync.Mutex
	var attempts int
	var happened events.Payload
	memory := func(ctx context.Context, a callctx.Action) (string, error) {
		mu.Lock()
		attempts++
		mine := attempts
		mu.Unlock()
		text, event, err := m.act(ctx, a)
		mu.Lock()
		defer mu.Unlock()
		if err == nil && mine == attempts {
			happened = event
		}
		return text, err
	}
	out := tools.Execute(callctx.WithMemory(ctx, memory), c.Call)
	mu.Lock()
	defer mu.Unlock()
	if out.Failure != nil {
		return out, nil
	}
	return out, happened
}

// act does one action and returns its text for the model.
func (m memory) act(ctx context.Context, a callctx.Action) (string, events.Payload, error) {
	entry := events.Entry{Tags: m.tags(a.Tags), Value: m.results.Redact(strings.ToValidUTF8(a.Value, "\uFFFD"))}
	if err := checkAction(a.Verb, entry); err != nil {
		return "", nil, err
	}
	switch a.Verb {
	case callctx.Add:
		return "In working memory under " + named(entry.Tags) + m.replaced(entry.Tags), &events.WorkingMemoryAdded{Entry: entry}, nil
	case callctx.Remove:
		return m.remove(entry.Tags)
	case callctx.Save:
		return m.save(ctx, entry)
	case callctx.Load:
		return m.load(ctx, entry.Tags)
	case callctx.Search:
		return m.search(ctx, entry)
	}
	return "", nil, tool.Failf(tool.CodeFailed, "there is no action %q on memory", a.Verb)
}

// tags returns the tags that the model gave as a set.
func (m memory) tags(given []string) []string {
	clean := make([]string, len(given))
	for i, tag := range given {
		clean[i] = m.results.Redact(strings.ToValidUTF8(tag, "\uFFFD"))
	}
	return reducer.NormalTags(clean)
}

// checkAction returns what the model should know about an entry that cannot be stored or loaded.
func checkAction(v callctx.Verb, e events.Entry) error {
	var err error
	switch {
	case v == callctx.Add || v == callctx.Save:
		err = entrystore.CheckEntry(e)
	case v != callctx.Search || len(e.Tags) > 0:
		err = entrystore.CheckTags(e.Tags)
	}
	if err != nil {
		return tool.Failf(tool.CodeInvalidArguments, "%v", err)
	}
	return nil
}

// named writes a set of tags for the model.
func named(tags []string) string { return "[" + strings.Join(tags, ", ") + "]" }

func (m memory) holds(tags []string) bool {
	return slices.ContainsFunc(m.working.WorkingMemory, func(held reducer.MemoryEntry) bool { return slices.Equal(held.Tags, tags) })
}

func (m memory) replaced(tags []string) string {
	if m.holds(tags) {
		return "; it replaced what was there."
	}
	return "."
}

func (m memory) remove(tags []string) (string, events.Payload, error) {
	if !m.holds(tags) {
		return "Not found: working memory has no entry with exactly the tags " + named(tags) + ".", nil, nil
	}
	return "Removed " + named(tags) + " from working memory.", &events.WorkingMemoryRemoved{Tags: tags}, nil
}

func (m memory) save(ctx context.Context, e events.Entry) (string, events.Payload, error) {
	if err := m.storage.Save(ctx, m.of, entrystore.Actor, e); err != nil {
		return "", nil, storageFailure(err)
	}
	return "Saved in storage under " + named(e.Tags) + ".", &events.StorageSaved{Entry: e}, nil
}

// load copies the found entries into working memory. The model also sees them in the
// result.
func (m memory) load(ctx context.Context, tags []string) (string, events.Payload, error) {
	found, err := m.find(ctx, entrystore.Query{Tags: tags})
	if err != nil {
		return "", nil, err
	}
	if len(found.Entries) == 0 {
		return "Not found: storage has no entry with the tags " + named(tags) + ".", nil, nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Found %d; in working memory now:", found.Total)
	for _, e := range found.Entries {
		fmt.Fprintf(&b, "\n%s %s", named(e.Tags), e.Value)
	}
	b.WriteString(more(found, "were not loaded"))
	b.WriteString(m.kept(found.Entries))
	return b.String(), &events.StorageLoaded{Tags: tags, Entries: found.Entries}, nil
}

// kept names the entries that were not loaded, since working memory has an entry of its
// own under their tags.
func (m memory) kept(found []events.Entry) string {
	var tags []string
	for _, e := range found {
		if m.working.HoldsNewer(e) {
			tags = append(tags, named(e.Tags))
		}
	}
	if len(tags) == 0 {
		return ""
	}
	return "\n[moorebus: working memory keeps what it has under " + strings.Join(tags, ", ") +
		", since it was not saved yet: save or remove that to load what is in storage]"
}

func (m memory) search(ctx context.Context, e events.Entry) (string, events.Payload, error) {
	found, err := m.find(ctx, entrystore.Query{Tags: e.Tags, Value: e.Value, MaxBytes: 20 * entrystore.DefaultMaxBytes})
	if err != nil {
		return "", nil, err
	}
	if len(found.Entries) == 0 {
		return "Not found: storage has no such entry.", nil, nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Found %d:", found.Total)
	for _, e := range found.Entries {
		shown := truncate.Prefix(e.Value, shownBytes)
		if shown != e.Value {
			shown += fmt.Sprintf("… (%d bytes)", len(e.Value))
		}
		fmt.Fprintf(&b, "\n%s %s", named(e.Tags), strings.ReplaceAll(shown, "\n", " "))
	}
	b.WriteString(more(found, "are not shown"))
	return b.String(), nil, nil
}

// find searches the storage. Its values may be older than a secret, so they are redacted.
func (m memory) find(ctx context.Context, q entrystore.Query) (entrystore.Found, error) {
	found, err := m.storage.Find(ctx, m.of, q)
	if err != nil {
		return entrystore.Found{}, storageFailure(err)
	}
	for i := range found.Entries {
		found.Entries[i].Value = m.results.Redact(found.Entries[i].Value)
	}
	return found, nil
}

// more says how many entries there are beyond those found, and how to see them.
func more(found entrystore.Found, what string) string {
	rest := found.Total - len(found.Entries)
	if rest <= 0 {
		return ""
	}
	return fmt.Sprintf("\n[moorebus: %d more %s: give more tags to have fewer; storage_search lists what there is]", rest, what)
}

// storageFailure returns what the model sees. An outage may pass.
func storageFailure(err error) error {
	f := tool.Failf(codes.Storage, "%v", err)
	f.Passing = !errors.Is(err, journal.ErrDenied) && !errors.Is(err, journal.ErrNotReady) && !errors.Is(err, journal.ErrTooLarge)
	return f
}

// maxAttachments bounds what one call may attach: more would not fit into its event.
const maxAttachments = 100

// maxMediaType bounds the name of a media type in the log, in bytes (RFC 6838: 127 for each part).
const maxMediaType = 255

// attachments stores the images and files that one call's tool returns, and remembers their
// references for the event.
type attachments struct {
	blobs journal.Blobs
	pool  string
	// redact removes secrets from a text.
	redact func(string) string

	mu     sync.Mutex
	refs   []events.Attachment
	closed bool
}

// under returns the context of the call's tool.
func (k *attachments) under(ctx context.Context) context.Context {
	if k.blobs == nil {
		return ctx
	}
	return callctx.WithStore(ctx, k.store)
}

// store stores data in the pool's bucket. Data with a secret in it is not kept: to replace a part
// of a file would break it.
func (k *attachments) store(ctx context.Context, mediaType string, data []byte) (string, error) {
	text := string(data)
	switch {
	case k.full():
		return "", tool.Failf(tool.CodeFailed, "a call may return %d attachments at most", maxAttachments)
	case k.redact(text) != text:
		return "", errors.New("a secret is in it")
	case len(mediaType) > maxMediaType || k.redact(mediaType) != mediaType:
		mediaType = "" // as one that cannot be read
	}
	ref, err := k.blobs.PutBlob(ctx, k.pool, data)
	if err != nil {
		return "", err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if kept := (events.Attachment{Ref: ref, MediaType: mediaType}); !k.closed && !slices.Contains(k.refs, kept) {
		k.refs = append(k.refs, kept)
	}
	return ref.Bucket + "/" + ref.Key, nil
}

func (k *attachments) full() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.closed || len(k.refs) >= maxAttachments
}

// taken returns the references. Afterwards the tool can store nothing more.
func (k *attachments) taken() []events.Attachment {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	return k.refs
}
