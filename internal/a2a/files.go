package a2a

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// maxFiles bounds the files that an answer holds itself, in bytes. It has the URLs of the others.
const maxFiles = 4 << 20

// anyFile is the media type of a file whose type is not known.
const anyFile = "application/octet-stream"

// filesOf returns the files that tools gave to a run, one artifact each, in the order of their
// calls. Each has the URL at which the gateway has it.
func filesOf(mem *reducer.Memory, base string) (files []artifact) {
	calls := slices.SortedFunc(maps.Keys(mem.ToolCalls), func(a, b string) int {
		return cmp.Or(mem.ToolCalls[a].Timestamp.Compare(mem.ToolCalls[b].Timestamp), cmp.Compare(a, b))
	})
	for _, id := range calls {
		call := mem.ToolCalls[id]
		for i := range call.Attachments {
			a := &call.Attachments[i]
			if a.Size == 0 {
				continue
			}
			files = append(files, artifact{
				ArtifactID: fmt.Sprintf("%s/%d", id, i), Name: call.Name, Description: "A file that the tool " + call.Name + " returned.",
				Parts: []part{storedPart(&a.Ref, base, a.MediaType, "")},
			})
		}
	}
	return files
}

// storedPart is a file of the object store. base is where the client reached the gateway.
func storedPart(ref *events.Ref, base, mediaType, name string) part {
	return part{
		URL:       fmt.Sprintf("%s/v1/blobs/%s/%s?size=%d", base, ref.Bucket, ref.Key, ref.Size),
		MediaType: cmp.Or(mediaType, anyFile), Filename: name, ref: ref,
	}
}

// fill puts files into artifacts, up to the size limit. A file that cannot be read keeps its URL, and
// the client gets the reason there.
func (f *Face) fill(ctx context.Context, artifacts []artifact) {
	room := maxFiles
	for _, a := range artifacts {
		for i := range a.Parts {
			p := &a.Parts[i]
			if p.ref == nil || p.ref.Size > room {
				continue
			}
			if data, err := f.cfg.Control.Blob(ctx, *p.ref); err == nil {
				p.Raw, p.URL = data, ""
				room -= len(data)
			}
		}
	}
}
