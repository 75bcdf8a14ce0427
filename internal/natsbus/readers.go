package natsbus

import "sync"

// maxIdleReaders is how many readers for small pages are kept that nobody uses.
const maxIdleReaders = pagesAtOnce

// readers are those that may be used again. Most reads are small, and each
// subscription that comes or goes makes the server forget the ways that it knows.
type readers struct {
	mu   sync.Mutex
	idle []*reader
}

// take returns a reader of a stream for pages of that size, or nil.
func (p *readers) take(stream string, records int) *reader {
	if records != firstRecords {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for n := len(p.idle); n > 0; n-- {
		r := p.idle[n-1]
		p.idle = p.idle[:n-1]
		if r.sub.IsValid() {
			r.ready(stream)
			return r
		}
		r.end()
	}
	return nil
}

// give keeps a reader for the next read, and reports false if it is not to be used
// again: it is too large, or what it asked for may still come, or its bus only looks
// about and was not opened.
func (p *readers) give(r *reader) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.asking || r.bus.replies == nil || r.room() != firstRecords || len(p.idle) >= maxIdleReaders {
		return false
	}
	kept := *r // whoever has r may put another one in its place
	p.idle = append(p.idle, &kept)
	return true
}
