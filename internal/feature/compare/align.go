package compare

import "github.com/moorebus/moorebus/internal/jsondiff"

// align returns the steps from the calls a to the calls b: the longest common subsequence of
// names and canonical arguments is the same, and between two calls of it the longest common
// subsequence of names is changed. What is removed comes before what is added.
func align(a, b []Call) []Op {
	ops := []Op{}
	same := ids(a, b, func(c Call) string { return c.Name + "\x00" + jsondiff.Canonical(c.Arguments) })
	eachGap(same, func(from, to [2]int, matched bool) {
		gapA, gapB := a[from[0]:to[0]], b[from[1]:to[1]]
		eachGap(ids(gapA, gapB, func(c Call) string { return c.Name }), func(from, to [2]int, matched bool) {
			for i := range gapA[from[0]:to[0]] {
				ops = append(ops, Op{Op: Removed, A: &gapA[from[0]+i]})
			}
			for i := range gapB[from[1]:to[1]] {
				ops = append(ops, Op{Op: Added, B: &gapB[from[1]+i]})
			}
			if matched {
				ops = append(ops, Op{Op: Changed, A: &gapA[to[0]], B: &gapB[to[1]]})
			}
		})
		if matched {
			ops = append(ops, Op{Op: Same, A: &a[to[0]], B: &b[to[1]]})
		}
	})
	return ops
}

// ids gives equal calls of two lists equal numbers.
func ids(a, b []Call, key func(Call) string) [2][]int {
	known := map[string]int{}
	var numbers [2][]int
	for side, calls := range [][]Call{a, b} {
		numbers[side] = make([]int, len(calls))
		for i, c := range calls {
			k := key(c)
			if _, seen := known[k]; !seen {
				known[k] = len(known)
			}
			numbers[side][i] = known[k]
		}
	}
	return numbers
}

// eachGap calls fn for what lies between the elements that two lists have in common: from and to
// are places in both, and matched says that they have the elements at to in common.
func eachGap(lists [2][]int, fn func(from, to [2]int, matched bool)) {
	from := [2]int{}
	for _, pair := range common(lists[0], lists[1]) {
		fn(from, pair, true)
		from = [2]int{pair[0] + 1, pair[1] + 1}
	}
	fn(from, [2]int{len(lists[0]), len(lists[1])}, false)
}
