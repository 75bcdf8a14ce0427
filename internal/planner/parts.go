package planner

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/moorebus/moorebus/internal/media"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// The tokens that an image, and a file for each fileBytes that are begun, count as in
// estimates, where it is not text. Providers count an image by its size in pixels: about 1,600 tokens for one of
// 1,000 by 1,200, as for a page of a document.
const (
	imageTokens = 1600
	fileBytes   = 50_000
)

// mediaTokens is what a part counts besides its text.
func mediaTokens(p events.Part) int {
	switch p.Type {
	case events.PartImage:
		return imageTokens
	case events.PartFile:
		if media.IsText(p.MediaType) {
			return sizeOf(p) / 4
		}
		return imageTokens * max(1, (sizeOf(p)+fileBytes-1)/fileBytes)
	}
	return 0
}

// sizeOf is the number of bytes of a part, also while they are in the object store.
func sizeOf(p events.Part) int {
	if p.Ref != nil {
		return p.Ref.Size
	}
	return len(p.Data)
}

// storedPart is a part of a request's message that is in the object store.
type storedPart struct {
	message, part int
	ref           events.Ref
}

// storedParts returns the parts of a run's request that are in the object store, in order.
func storedParts(mem *reducer.Memory) []storedPart {
	if !mem.Control.Stored {
		return nil
	}
	var found []storedPart
	for i, m := range reducer.View(nil, mem) {
		for k := range m.Parts {
			if ref := m.Parts[k].Ref; ref != nil {
				found = append(found, storedPart{i, k, *ref})
			}
		}
	}
	return found
}

// withStored returns the messages with the data of these parts. What the object store does
// not have any more, and what the request has no room for, oldest first, is omitted in
// words. An error is the object store's.
func (p *Planner) withStored(ctx context.Context, messages []llm.Message, stored []storedPart) ([]llm.Message, error) {
	if len(stored) == 0 {
		return messages, nil
	}
	messages = slices.Clone(messages)
	own := map[int]bool{}
	loaded := map[events.Ref][]byte{}
	room := media.MaxBytes
	for _, s := range slices.Backward(stored) {
		m := &messages[s.message]
		if !own[s.message] {
			m.Parts, own[s.message] = slices.Clone(m.Parts), true
		}
		part := &m.Parts[s.part]
		room -= s.ref.Size
		if room < 0 {
			*part = leftOut(*part, fmt.Sprintf("since a request has room for %s of them, and the latest come first", media.Size(media.MaxBytes)))
			continue
		}
		data, known := loaded[s.ref]
		if !known {
			var err error
			if data, err = p.blob(ctx, s.ref); err != nil {
				return nil, fmt.Errorf("%s: %w", named(*part), err)
			}
			loaded[s.ref] = data
		}
		if data == nil {
			*part = leftOut(*part, "since it is not stored any more")
		} else {
			part.Data, part.Ref = data, nil
		}
	}
	return messages, nil
}

// blob reads from the object store; nil without an error: it is not there.
func (p *Planner) blob(ctx context.Context, ref events.Ref) ([]byte, error) {
	if p.cfg.Blobs == nil {
		return nil, nil
	}
	data, err := p.cfg.Blobs.Blob(ctx, ref)
	if errors.Is(err, journal.ErrNotFound) {
		return nil, nil
	}
	return data, err
}

// leftOut says in words that a part was omitted.
func leftOut(p events.Part, why string) events.Part {
	return events.Part{Type: events.PartText, Text: fmt.Sprintf("[%s: left out, %s]", named(p), why)}
}

func named(p events.Part) string { return media.Words(p.Type, p.Name, p.MediaType, "", sizeOf(p)) }
