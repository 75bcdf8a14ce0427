// Package racing says whether the race detector is on. It makes what a processor does
// some ten times slower: a test that repeats something hundreds of times to meet rare
// cases does so less often there, since a race shows in few. CI runs those tests
// without it too, at full size. For tests only.
package racing

// Size returns how often something is done, or in which steps: as it is, or with the
// race detector as is enough.
func Size(full, enough int) int {
	if On {
		return enough
	}
	return full
}
