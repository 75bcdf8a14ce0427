// Package callname names calls: providers give them ids that may be long, odd or the same
// twice, and the log's names are short, plain and new in their run.
package callname

import (
	"slices"
	"strconv"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// New returns the name that the log gives to a provider's call id: the id itself, or
// `call_<hash>` for one that is too long or has other characters than letters, digits and
// `_.~:-`, and `call` for none. Where that is taken, `~<k>` follows with the lowest k that
// is new. known are the run's calls ([reducer.Control.CallOrder]) and those of the same
// reply.
func New(known []string, provider string) string {
	base := plain(provider)
	if base != "" && !slices.Contains(known, base) {
		return base
	}
	if base == "" {
		base = "call"
	}
	// They are read once: a provider may give every call the same id.
	taken := map[string]bool{}
	for _, id := range known {
		if strings.HasPrefix(id, base+"~") {
			taken[id] = true
		}
	}
	for k := 1; ; k++ {
		if id := base + "~" + strconv.Itoa(k); !taken[id] {
			return id
		}
	}
}

// maxName is the longest provider's id that names a call, in bytes.
const maxName = 128

// plain is a provider's id if tools and paths can be given it as it is, else a name made
// of its hash.
func plain(provider string) string {
	odd := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_.~:-", r))
	}
	if len(provider) <= maxName && strings.IndexFunc(provider, odd) < 0 {
		return provider
	}
	return "call_" + events.Hash([]byte(provider))[:16]
}

// Find returns the log's name of a call that a client or the model names, by that or by
// the provider's id. An id of no call is returned as it is. A model may give a call the name that
// the id of another one leads to, so that who decides on the one would decide on the other: the
// call has to have that id.
func Find(mem *reducer.Memory, id string) string {
	name := plain(id)
	if call := mem.ToolCalls[name]; mem.ToolCalls[id] == nil && call != nil && call.ProviderID == id {
		return name
	}
	return id
}
