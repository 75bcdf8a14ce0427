package list

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
)

// MaxPeople is the largest number of runs in a page of [Lister.ForPeople].
const MaxPeople = 200

// Waits is a run that waits for people, and since when. It may have gone on meanwhile.
type Waits struct {
	Run
	Since time.Time
}

// ForPeople returns runs of the namespace that wait for decisions, answers or messages of people:
// the soonest deadline first, those without one last, and then the longest wait first. next, if not
// empty, is the cursor of the next page. Errors are those of [Lister.Runs].
func (l *Lister) ForPeople(ctx context.Context, ns string, limit int, cursor string) (found []Waits, next string, err error) {
	if limit == 0 {
		limit = DefaultLimit
	}
	if limit < 1 || limit > MaxPeople {
		return nil, "", badParameter("limit: must be 1 to %d", MaxPeople)
	}
	after, err := parseTurn(cursor)
	if err != nil {
		return nil, "", err
	}
	if ns, err = l.upToDate(ctx, ns); err != nil {
		return nil, "", err
	}
	var turns []turn
	l.index.mu.RLock()
	defer l.index.mu.RUnlock()
	space := l.index.namespaces[ns]
	if space == nil {
		return nil, "", nil
	}
	for _, r := range space.started {
		if r.info.State == events.WaitingForHuman || r.info.State == events.WaitingForUser {
			if t := r.turn(); cursor == "" || t.compare(after) > 0 {
				turns = append(turns, t)
			}
		}
	}
	slices.SortFunc(turns, turn.compare)
	for i, t := range turns[:min(limit, len(turns))] {
		r := space.runs[t.run]
		found = append(found, Waits{r.info, r.entered})
		if i == limit-1 && len(turns) > limit {
			next = t.String()
		}
	}
	return found, next, nil
}

// turn is a run's place in the order of those that wait. Times are in nanoseconds since 1970, a
// deadline of 0 is none.
type turn struct {
	deadline, since int64
	run             string
}

func (r *row) turn() turn {
	t := turn{since: r.entered.UnixNano(), run: r.run.ID}
	if !r.deadline.IsZero() {
		t.deadline = max(1, r.deadline.UnixNano())
	}
	return t
}

func (t turn) compare(o turn) int {
	if (t.deadline == 0) != (o.deadline == 0) {
		return -cmp.Compare(t.deadline, o.deadline)
	}
	return cmp.Or(cmp.Compare(t.deadline, o.deadline), cmp.Compare(t.since, o.since), cmp.Compare(t.run, o.run))
}

func (t turn) String() string { return fmt.Sprintf("%d.%d.%s", t.deadline, t.since, t.run) }

// parseTurn reads a cursor; the zero turn if it is empty.
func parseTurn(cursor string) (t turn, err error) {
	if cursor == "" {
		return t, nil
	}
	deadline, rest, _ := strings.Cut(cursor, ".")
	since, run, _ := strings.Cut(rest, ".")
	var errDeadline, errSince error
	t.deadline, errDeadline = strconv.ParseInt(deadline, 10, 64)
	t.since, errSince = strconv.ParseInt(since, 10, 64)
	if t.run = run; errDeadline != nil || errSince != nil || events.CheckID(run) != nil {
		return t, badParameter("cursor: %.100q is not one of this list", cursor)
	}
	return t, nil
}
