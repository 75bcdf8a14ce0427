package compare

import "slices"

// common returns a longest common subsequence of two lists, as places in a and in b. It is
// Myers' algorithm in its form that needs memory for the lists alone, and time for their lengths
// times the number of differences ("An O(ND) Difference Algorithm", section 4b). Elements that
// only one list has are left out first: they cost nothing.
func common(a, b []int) [][2]int {
	m := matcher{}
	m.a, m.inA = shared(a, b)
	m.b, m.inB = shared(b, a)
	m.match(0, len(m.a), 0, len(m.b))
	return m.pairs
}

// shared returns the elements of list that other has, too, with their places.
func shared(list, other []int) (kept, places []int) {
	known := make(map[int]bool, len(other))
	for _, v := range other {
		known[v] = true
	}
	for i, v := range list {
		if known[v] {
			kept, places = append(kept, v), append(places, i)
		}
	}
	return kept, places
}

// matcher collects pairs of a and b, whose elements came from the places inA and inB.
type matcher struct {
	a, b, inA, inB []int
	pairs          [][2]int
}

func (m *matcher) pair(x, y, length int) {
	for i := range length {
		m.pairs = append(m.pairs, [2]int{m.inA[x+i], m.inB[y+i]})
	}
}

// match pairs a[fromA:toA] and b[fromB:toB].
func (m *matcher) match(fromA, toA, fromB, toB int) {
	head := 0
	for fromA+head < toA && fromB+head < toB && m.a[fromA+head] == m.b[fromB+head] {
		head++
	}
	m.pair(fromA, fromB, head)
	fromA, fromB = fromA+head, fromB+head
	tail := 0
	for fromA < toA-tail && fromB < toB-tail && m.a[toA-tail-1] == m.b[toB-tail-1] {
		tail++
	}
	toA, toB = toA-tail, toB-tail
	if fromA < toA && fromB < toB {
		x, y, length := middle(m.a[fromA:toA], m.b[fromB:toB])
		m.match(fromA, fromA+x, fromB, fromB+y)
		m.pair(fromA+x, fromB+y, length)
		m.match(fromA+x+length, toA, fromB+y+length, toB)
	}
	m.pair(toA, toB, tail)
}

// middle returns the common run of elements, which may be empty, in the middle of a shortest way
// from a to b: where it begins in both, and its length.
func middle(a, b []int) (x, y, length int) {
	half, delta := (len(a)+len(b)+1)/2, len(a)-len(b)
	forward, backward := newFront(a, b, half), newFront(reversed(a), reversed(b), half)
	for d := 0; ; d++ {
		for k := -d; k <= d; k += 2 {
			x, length := forward.extend(d, k)
			if delta%2 != 0 && forward.meets(k, backward, delta-k) {
				return x, x - k, length
			}
		}
		for k := -d; k <= d; k += 2 {
			x, length := backward.extend(d, k)
			if delta%2 == 0 && backward.meets(k, forward, delta-k) {
				return len(a) - x - length, len(b) - (x - k) - length, length
			}
		}
	}
}

func reversed(list []int) []int {
	list = slices.Clone(list)
	slices.Reverse(list)
	return list
}

// front is how far d differences lead from the beginning of two lists, on each diagonal x-y.
type front struct {
	a, b    []int
	half    int
	reached []int // x by diagonal, -1 for none
}

func newFront(a, b []int, half int) *front {
	return &front{a: a, b: b, half: half, reached: slices.Repeat([]int{-1}, 2*half+3)}
}

func (f *front) at(k int) *int { return &f.reached[k+f.half+1] }

// extend goes on to the diagonal k by the d-th difference and along it while elements are equal.
// It returns where the equal ones begin and how many they are.
func (f *front) extend(d, k int) (from, length int) {
	x := -1
	if d == 0 {
		x = 0
	}
	if down := *f.at(k + 1); down >= 0 && down-k <= len(f.b) {
		x = down
	}
	if right := *f.at(k - 1); right >= 0 && right < len(f.a) {
		x = max(x, right+1)
	}
	from = x
	for x >= 0 && x < len(f.a) && x-k < len(f.b) && f.a[x] == f.b[x-k] {
		x++
	}
	*f.at(k) = x
	return from, x - from
}

// meets reports whether the fronts of both ends have met on a diagonal.
func (f *front) meets(k int, o *front, l int) bool {
	if l < -f.half || l > f.half {
		return false
	}
	x, rest := *f.at(k), *o.at(l)
	return x >= 0 && rest >= 0 && x+rest >= len(f.a)
}
