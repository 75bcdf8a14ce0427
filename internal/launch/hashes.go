package launch

import (
	"crypto/sha256"
	"encoding/json"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/pkg/events"
)

// hashesKept bounds the definitions whose hashes are kept.
const hashesKept = 256

// hashes are the hashes of definitions that were started last, by their text: the
// canonical form takes several times as long as the text.
type hashes struct {
	known *lru.Cache[[sha256.Size]byte, string]
}

func newHashes() (*hashes, error) {
	known, err := lru.New[[sha256.Size]byte, string](hashesKept)
	return &hashes{known}, err
}

// of is [agentfile.Hash].
func (h *hashes) of(a events.Agent) string {
	text, err := json.Marshal(a)
	if err != nil {
		return agentfile.Hash(a)
	}
	key := sha256.Sum256(text)
	hash, ok := h.known.Get(key)
	if !ok {
		hash = agentfile.Hash(a)
		h.known.Add(key, hash)
	}
	return hash
}
