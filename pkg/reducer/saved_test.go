package reducer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

// Storage and working memory may hold two values under the same tags: what was said
// last must be the one that stays.
func TestTheLastValueStays(t *testing.T) {
	entry := func(value string, tags ...string) events.Entry { return events.Entry{Tags: tags, Value: value} }
	for name, c := range map[string]struct {
		happens []events.Payload
		value   string
		loaded  bool
	}{
		"a load leaves what was not saved": {[]events.Payload{
			&events.WorkingMemoryAdded{Entry: entry("new", "b", "a a")},
			&events.StorageLoaded{Tags: []string{"b"}, Entries: []events.Entry{entry("old", "a_a", "b")}},
		}, "new", false},
		"the same value was saved": {[]events.Payload{
			&events.WorkingMemoryAdded{Entry: entry("same", "a")},
			&events.StorageLoaded{Tags: []string{"a"}, Entries: []events.Entry{entry("same", "a")}},
		}, "same", true},
		"a load replaces what was loaded": {[]events.Payload{
			&events.StorageLoaded{Tags: []string{"a"}, Entries: []events.Entry{entry("old", "a")}},
			&events.StorageLoaded{Tags: []string{"a"}, Entries: []events.Entry{entry("new", "a")}},
		}, "new", true},
		"a save is newer than working memory": {[]events.Payload{
			&events.WorkingMemoryAdded{Entry: entry("old", "a")},
			&events.StorageSaved{Entry: entry("new", "a")},
		}, "old", true},
		"and is loaded": {[]events.Payload{
			&events.WorkingMemoryAdded{Entry: entry("old", "a")},
			&events.StorageSaved{Entry: entry("new", "a")},
			&events.StorageLoaded{Tags: []string{"a"}, Entries: []events.Entry{entry("new", "a")}},
		}, "new", true},
		"what is added after a save is newer": {[]events.Payload{
			&events.StorageSaved{Entry: entry("old", "a")},
			&events.WorkingMemoryAdded{Entry: entry("new", "a")},
			&events.StorageLoaded{Tags: []string{"a"}, Entries: []events.Entry{entry("old", "a")}},
		}, "new", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := at(events.Acting)(t)
			for _, p := range c.happens {
				s.do(p)
			}
			require.Len(t, s.Mem.WorkingMemory, 1)
			require.Equal(t, c.value, s.Mem.WorkingMemory[0].Value)
			require.Equal(t, c.loaded, s.Mem.WorkingMemory[0].Loaded)
		})
	}
}
