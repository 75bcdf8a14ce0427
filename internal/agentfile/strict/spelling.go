package strict

import (
	"cmp"
	"slices"
	"strings"
)

// DidYouMean returns "; did you mean NAME?" for the known name that is the nearest to an
// unknown one, and an empty string if none is near. Case, hyphens and underscores do not
// count. Of equally near names it takes the first one of known.
func DidYouMean(name string, known []string) string {
	best, least := "", 1+min(2, len(name)/3)
	for _, k := range known {
		if d := distance(plain(k), plain(name)); d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// Nearest returns at most so many of the known names, the nearest first. A name that is a
// part of another one is near it.
func Nearest(name string, known []string, most int) []string {
	rank := func(k string) int {
		if strings.Contains(k, name) || strings.Contains(name, k) {
			return 1
		}
		return distance(k, name)
	}
	sorted := slices.Clone(known)
	slices.SortStableFunc(sorted, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	return sorted[:min(most, len(sorted))]
}

func plain(name string) string {
	return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(name))
}

// distance is the number of bytes to insert, remove or replace (Levenshtein), where two
// neighbours that changed places count as one.
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			replaced := last[j]
			if a[i] != b[j] {
				replaced++
			}
			row[j+1] = min(replaced, row[j]+1, last[j+1]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
