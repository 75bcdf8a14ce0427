package planner

import "strings"

// ofAnswer has what a validator of calls says be about an answer.
func ofAnswer(problem string) string {
	return strings.NewReplacer("the arguments do not match the tool's schema", "the answer does not match it", "the arguments are", "the answer is",
		"the arguments cannot", "the answer cannot").Replace(problem)
}
