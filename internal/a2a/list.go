package a2a

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// The sizes of a page of tasks.
const (
	usualPage = 50
	maxPage   = 100
)

var listParameters = []route.Parameter{
	{Name: "contextId", Description: "Only tasks of this context."},
	{Name: "status", Description: "Only tasks in this state, such as TASK_STATE_WORKING."},
	{Name: "statusTimestampAfter", Description: "Only tasks that were updated at this time (RFC 3339) or later."},
	{Name: "pageSize", Description: "How many tasks to return, at most 100; default: 50."},
	{Name: "pageToken", Description: "The nextPageToken of the page before."},
	{Name: historyLength, Description: "How many of the last messages of each task to return; default: none."},
	{Name: "includeArtifacts", Description: "Whether tasks have their artifacts; default: false."},
}

var states = []taskState{submitted, working, completed, failed, canceled, inputRequired, "TASK_STATE_REJECTED", "TASK_STATE_AUTH_REQUIRED"}

// listing is a request for a list of tasks.
type listing struct {
	context   string
	state     taskState
	after     time.Time
	size      int
	token     string
	history   int
	artifacts bool
}

func readListing(values map[string]string) (l listing, err error) {
	l = listing{context: values["contextId"], state: taskState(values["status"]), token: values["pageToken"]}
	if l.state == "TASK_STATE_UNSPECIFIED" {
		l.state = ""
	}
	if l.state != "" && !slices.Contains(states, l.state) {
		return l, route.BadParameter("status: %.100q is not a state such as %s", l.state, working)
	}
	size, err := route.Number(values, "pageSize", usualPage)
	if err != nil {
		return l, err
	}
	if l.size = int(min(size, maxPage+1)); l.size > maxPage {
		return l, route.BadParameter("pageSize: must be 1 to %d", maxPage)
	}
	if text := values["statusTimestampAfter"]; text != "" {
		if l.after, err = time.Parse(time.RFC3339, text); err != nil {
			return l, route.BadParameter("statusTimestampAfter: %.100q is not a time such as 2026-01-02T15:04:05Z", text)
		}
	}
	history, err := lengthOf(values)
	if err != nil {
		return l, err
	}
	if history != nil {
		l.history = *history
	}
	if text := values["includeArtifacts"]; text != "" {
		if l.artifacts, err = strconv.ParseBool(text); err != nil {
			return l, route.BadParameter("includeArtifacts: %.100q is not true or false", text)
		}
	}
	return l, nil
}

// listTasks lists the newest tasks that the agent has.
func (f *Face) listTasks(ctx context.Context, r *http.Request, values map[string]string) (any, error) {
	l, err := readListing(values)
	if err != nil {
		return nil, err
	}
	to := targetOf(r, "")
	page, err := f.cfg.Control.Runs(ctx, to.ns, list.Query{Filters: list.Filters{"agent": to.agent}, Limit: list.MaxLimit})
	if err != nil {
		return nil, err
	}
	var found []task1
	for _, run := range page.Runs {
		if l.excludes(run) {
			continue
		}
		t := task1{ID: run.RunID, Status: status{Timestamp: timestamp(run.Updated)}}
		if l.context != "" || l.state != "" {
			to.run = run.RunID
			if t, err = f.task(ctx, to, &l.history); refusal.Is(err, refusal.CodeTaskNotFound, refusal.CodeRunPurged) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if l.context != "" && t.ContextID != l.context || l.state != "" && t.Status.State != l.state {
				continue
			}
		}
		found = append(found, t)
	}
	return f.page(ctx, to, l, found)
}

// excludes reports whether the state of a run keeps it out of the list.
func (l *listing) excludes(run list.Run) bool {
	ends := map[events.State]taskState{events.Done: completed, events.Errored: failed, events.Cancelled: canceled}
	if end, ended := ends[run.State]; ended && l.state != "" && l.state != end {
		return true
	}
	return run.Updated.Before(l.after)
}

// page returns one page of what was found, the last updated first. Its token names the last task
// of the page and when that was updated, so tasks that are updated meanwhile move to the front and
// are not repeated.
func (f *Face) page(ctx context.Context, to target, l listing, found []task1) (any, error) {
	key := func(t *task1) string { return t.Status.Timestamp + "/" + t.ID }
	slices.SortFunc(found, func(a, b task1) int { return cmp.Compare(key(&b), key(&a)) })
	answer := taskList{Tasks: []task1{}, PageSize: l.size, TotalSize: len(found)}
	for i := range found {
		if l.token != "" && key(&found[i]) >= l.token {
			continue
		}
		if len(answer.Tasks) == l.size {
			answer.NextPageToken = key(&found[i-1])
			break
		}
		to.run = found[i].ID
		t, err := f.task(ctx, to, &l.history)
		if refusal.Is(err, refusal.CodeTaskNotFound, refusal.CodeRunPurged) {
			continue // it was purged, or handed over, meanwhile
		}
		if err != nil {
			return nil, err
		}
		if !l.artifacts {
			t.Artifacts = nil
		}
		answer.Tasks = append(answer.Tasks, t)
	}
	return answer, nil
}
