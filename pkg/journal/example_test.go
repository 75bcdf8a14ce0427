package journal_test

import (
	"fmt"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// What a filter selects, and the subject that it is on the bus.
func ExampleFilter_Subject() {
	ends := journal.Filter{Namespace: "default", To: events.Done}
	fmt.Println(ends.Subject(0))
	fmt.Println(ends.Match("moore.0.default.planning.done.default.019325a0-0000-7000-8000-000000000007"))
	// Output:
	// moore.0.default.*.done.*.*
	// true
}
