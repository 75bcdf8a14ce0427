package control

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/moorebus/moorebus/internal/media"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

const (
	// maxParts bounds the parts of one message.
	maxParts = 64
	// maxInline is how large the data of a part in the log may be, in bytes. Larger data
	// goes to the object store.
	maxInline = 4 << 10
)

// keepParts checks the parts of a message and stores their data as far as it is too large
// for the log. The same parts give the same result. where names the message in refusals,
// which are Invalid, with that code, for parts that are wrong, and Unprocessable for a
// reference to something that is not stored.
func (c *Controller) keepParts(ctx context.Context, code, where string, parts []events.Part) ([]events.Part, error) {
	if len(parts) > maxParts {
		return nil, refusal.New(refusal.Invalid, code, "%s: has %d parts; a message may have at most %d", where, len(parts), maxParts)
	}
	total := 0
	for i := range parts {
		if err := parts[i].Check(); err != nil {
			return nil, refusal.New(refusal.Invalid, code, "%s[%d]: %s", where, i, err.Error())
		}
		total += len(parts[i].Data)
		if ref := parts[i].Ref; ref != nil {
			total += ref.Size
		}
	}
	if total > media.MaxBytes {
		return nil, refusal.New(refusal.TooLarge, refusal.CodeTooLarge, "%s: its images and files have %s; a message may have at most %s",
			where, media.Size(total), media.Size(media.MaxBytes))
	}
	kept := slices.Clone(parts)
	for i := range kept {
		if err := c.keepPart(ctx, &kept[i]); err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", where, i, err)
		}
	}
	return kept, nil
}

// keepPart replaces large data by a reference, and checks that a given reference can be read.
func (c *Controller) keepPart(ctx context.Context, p *events.Part) error {
	switch {
	case p.Ref != nil:
		if c.cfg.Blobs == nil {
			return errNoBlobs
		}
		if _, err := c.cfg.Blobs.Blob(ctx, *p.Ref); err != nil {
			return unreadable(p.Ref, err)
		}
	case len(p.Data) > maxInline:
		if c.cfg.Blobs == nil {
			return errNoBlobs
		}
		ref, err := c.cfg.Blobs.PutBlob(ctx, events.DefaultPool, p.Data)
		if err != nil {
			return err
		}
		p.Data, p.Ref = nil, &ref
	}
	return nil
}

var errNoBlobs = errors.New("this process has no object store; give a URL")

// unreadable is the refusal of a reference, or the bus's error.
func unreadable(ref *events.Ref, err error) error {
	if !errors.Is(err, journal.ErrNotFound) {
		return err
	}
	return refusal.New(refusal.Unprocessable, refusal.CodeUnknownRef, "the object store has nothing with %d bytes and that digest as %s/%s", ref.Size, ref.Bucket, ref.Key)
}
