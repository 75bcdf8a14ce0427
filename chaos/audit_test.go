package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const auditedRun = "01890a5d-ac96-774b-bcce-b302099a8057"

// told is a log as a test writes it: from, to, type and data of each event.
type told [][4]string

// records chains the events.
func (l told) records() []record { return l.recordsOf(auditedRun, 0) }

// recordsOf chains them as those of a run that come after so many records of others.
func (l told) recordsOf(run string, after uint64) []record {
	var all []record
	prev := ""
	for i, e := range l {
		body, _ := json.Marshal(map[string]any{
			"time": "2026-01-01T00:00:01Z", "id": fmt.Sprint("id-", int(after)+i), "type": e[2], "subject": run, "n": i + 1, "from": e[0], "to": e[1],
			"prev": prev, "data": json.RawMessage(e[3]),
		})
		sum := sha256.Sum256(body)
		prev = hex.EncodeToString(sum[:])
		all = append(all, record{0, after + uint64(i+1), "moore.0.default." + e[0] + "." + e[1] + ".default." + run, body})
	}
	return all
}

// good is a run with an approved and modified call of a once tool.
func good() told {
	return told{
		{"idle", "planning", "Start", `{}`},
		{"planning", "waiting_for_human", "HumanApprovalRequired", `{"calls":[{"id":"c","name":"pay","arguments":"{}"}],"requests":[{"call_id":"c"}]}`},
		{"waiting_for_human", "acting", "HumanModified", `{"call_id":"c","decision":"modified","arguments":` + quote(modified("c")) + `,"by":"human of c"}`},
		{"acting", "acting", "ToolCallStarted", `{"call_id":"c"}`},
		{"acting", "observing", "ToolSuccess", `{"call_id":"c","success":true,"code":"ok"}`},
		{"observing", "planning", "Continue", `{}`},
		{"planning", "done", "LlmFinalAnswer", `{}`},
	}
}

// asking is a run in which a human is asked about a call of a once tool whose
// outcome is unknown.
func asking(said string) []record {
	return told{
		{"idle", "planning", "Start", `{}`},
		{"planning", "acting", "LlmToolCall", `{"calls":[{"id":"c","name":"pay","arguments":"{}"}]}`},
		{"acting", "acting", "ToolCallStarted", `{"call_id":"c"}`},
		{"acting", "waiting_for_human", "HumanApprovalRequired", `{"calls":[],"requests":[{"call_id":"c"}]}`},
		{"waiting_for_human", "acting", "HumanApproved", `{"call_id":"c","decision":"` + said + `","arguments":` + quote(modified("c")) + `,"by":"human of c"}`},
		{"acting", "acting", "ToolCallStarted", `{"call_id":"c"}`},
		{"acting", "observing", "ToolSuccess", `{"call_id":"c","success":true,"code":"ok"}`},
		{"planning", "done", "LlmFinalAnswer", `{}`},
	}.records()
}

// expiring is a run in which an approval expires one second into 2026.
func expiring(deadline string) []record {
	return told{
		{"idle", "planning", "Start", `{}`},
		{"planning", "waiting_for_human", "HumanApprovalRequired", `{"calls":[{"id":"c","name":"pay"}],"requests":[{"call_id":"c"}],"deadline":"` + deadline + `"}`},
		{"waiting_for_human", "observing", "ApprovalExpired", `{}`},
		{"planning", "done", "LlmFinalAnswer", `{}`},
	}.records()
}

// A human who knew that a call may have been executed may let it run again, and
// what nobody decided in time is answered.
func TestAuditAllows(t *testing.T) {
	t.Parallel()
	require.Empty(t, audited(t, asking("modified"), []execution{{"pay", "{}"}, {"pay", modified("c")}}, nil))
	require.Empty(t, audited(t, expiring("2026-01-01T00:00:01Z"), nil, nil))
}

// A fork has the calls of its parent up to where it begins, and none of them twice.
func TestAuditForks(t *testing.T) {
	t.Parallel()
	const fork = "01890a5d-ac96-774b-bcce-b302099a8058"
	told := func(at int, hash string, executed ...execution) string {
		r := &report{}
		parent := good().records()
		if hash == "" {
			sum := sha256.Sum256(parent[at-1].body)
			hash = hex.EncodeToString(sum[:])
		}
		first, _ := json.Marshal(map[string]any{
			"id": "fork-1", "type": "Forked", "subject": fork, "n": 1, "from": "idle", "to": "planning",
			"data": map[string]any{"run": auditedRun, "at": at, "hash": hash},
		})
		sum := sha256.Sum256(first)
		last, _ := json.Marshal(map[string]any{
			"id": "fork-2", "type": "LlmFinalAnswer", "subject": fork, "n": 2, "from": "planning", "to": "done", "prev": hex.EncodeToString(sum[:]), "data": struct{}{},
		})
		a := newAudit(r.found, map[string][]execution{auditedRun + "/c": {{"pay", modified("c")}}, fork + "/c": executed})
		a.read(append(parent, record{0, 8, "moore.0.default.idle.planning.default." + fork, first}, record{0, 9, "moore.0.default.planning.done.default." + fork, last}))
		p := scenarioModifying(t)
		a.check([]*carrier{newCarrier(p, nil, newFeed(nil, nil), r.found), newCarrier(p.fork(fork), nil, newFeed(nil, nil), r.found)})
		return strings.Join(r.findings, "\n")
	}
	require.Empty(t, told(6, ""))
	require.Contains(t, told(6, "0f"), "with hash 0f, which it has not")
	require.Contains(t, told(6, "", execution{"pay", modified("c")}), "does not hold its start")
	require.Contains(t, told(4, ""), "has no result", "a call that was under way begins again")
}

func TestCompareFinds(t *testing.T) {
	t.Parallel()
	r := &report{}
	whole, short, empty := newAudit(r.found, nil), newAudit(r.found, nil), newAudit(r.found, nil)
	whole.read(good().records())
	short.read(good()[:6].records())
	compare(whole, whole, r.found)
	require.Empty(t, r.findings)
	compare(whole, short, r.found)
	require.Len(t, r.findings, 1)
	compare(whole, empty, r.found)
	require.Len(t, r.findings, 3)
}

func quote(text string) string {
	q, _ := json.Marshal(text)
	return string(q)
}

// scenarioModifying is a scenario whose human modifies call c.
func scenarioModifying(t *testing.T) *scenario {
	t.Helper()
	for seed := range uint64(100) {
		if p := (&scenario{run: auditedRun, kind: "approval", seed: seed}); p.verdict("c").decision == "modified" {
			return p
		}
	}
	t.Fatal("nobody modifies anything")
	return nil
}

// audited is a log, a ledger and what the driver knows, and what is wrong with
// them.
func audited(t *testing.T, records []record, executed []execution, messages map[string]answered) string {
	t.Helper()
	r := &report{}
	a := newAudit(r.found, map[string][]execution{auditedRun + "/c": executed})
	a.read(records)
	c := newCarrier(scenarioModifying(t), nil, newFeed(nil, nil), r.found)
	c.messages = messages
	a.check([]*carrier{c})
	return strings.Join(r.findings, "\n")
}

func TestAuditFinds(t *testing.T) {
	t.Parallel()
	paid := execution{"pay", modified("c")}
	once := []execution{paid}
	require.Empty(t, audited(t, good().records(), once, nil))
	change := func(i int, to ...string) []record {
		l := good()
		copy(l[i][:], to)
		return l.records()
	}
	without := func(i int) []record {
		l := good()
		return append(l[:i:i], l[i+1:]...).records()
	}
	doubled := good().records()
	doubled = append(doubled[:6:6], doubled[5:]...)
	missing := good().records()
	missing = append(missing[:3:3], missing[4:]...)
	more := append(good()[:5:5], good()[4:]...)
	message := `{"message_id":"m"}`
	said := append(append(good()[:1:1], told{{"planning", "planning", "UserMessage", message}, {"planning", "planning", "UserMessage", message}}...), good()[1:]...)
	for name, c := range map[string]struct {
		records  []record
		executed []execution
		messages map[string]answered
		says     string
	}{
		"an event twice":                        {doubled, once, nil, "id id-5 is that of seq 6 too"},
		"an event too few":                      {missing, once, nil, "n is 5 where 4 is due"},
		"a broken chain":                        {missing, once, nil, "prev is"},
		"no end":                                {good()[:6].records(), once, nil, "has not ended"},
		"events after the end":                  {append(good(), good()[5]).records(), once, nil, "follows the end"},
		"the wrong end":                         {change(6, "planning", "error", "FatalError", `{"code":"poison"}`), once, nil, "done was due"},
		"a run that is not there":               {nil, nil, nil, "is not in the log"},
		"a once tool twice":                     {good().records(), []execution{paid, paid}, nil, "was executed 2 times"},
		"a once tool without its start":         {without(3), once, nil, "does not hold its start"},
		"a result of nothing":                   {good().records(), nil, nil, "was not executed"},
		"no result":                             {without(4), once, nil, "has no result"},
		"two results":                           {more.records(), once, nil, "has 2 results"},
		"other arguments":                       {good().records(), []execution{{"pay", "{}"}}, nil, "was executed with {}"},
		"another tool":                          {good().records(), []execution{{"note", modified("c")}}, nil, "was executed as note"},
		"no approval":                           {without(2), once, nil, "without an approval"},
		"another decision":                      {change(2, "waiting_for_human", "acting", "HumanApproved", `{"call_id":"c","decision":"approved","by":"human of c"}`), once, nil, "the human said {CallID:c Decision:modified"},
		"a lost message":                        {good().records(), once, map[string]answered{"m": {accepted: true}}, "is not in the log"},
		"a second run that no human let happen": {asking("rejected"), []execution{{"pay", "{}"}, {"pay", "{}"}}, nil, "was executed 2 times"},
		"too early an expiry":                   {expiring("2026-01-01T00:00:02Z"), nil, nil, "expired before its deadline"},
		"an expiry out of nothing":              {expiring(""), nil, nil, "had no deadline"},
		"a decision after the deadline":         {change(1, "planning", "waiting_for_human", "HumanApprovalRequired", `{"calls":[{"id":"c","name":"pay"}],"requests":[{"call_id":"c"}],"deadline":"2025-12-31T23:59:00Z"}`), once, nil, "after its deadline"},
		"a message twice":                       {said.records(), once, nil, "message m is in the log 2 times"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := audited(t, c.records, c.executed, c.messages)
			require.Contains(t, found, c.says)
		})
	}
	wrong := good().records()
	wrong[4].subject = strings.Replace(wrong[4].subject, "acting", "planning", 1)
	require.Contains(t, audited(t, wrong, once, nil), "ToolSuccess from acting stands on")
	require.Contains(t, audited(t, []record{{0, 1, "moore.0.default.idle.planning.default." + auditedRun, []byte("{")}}, nil, nil), "not an event")
}

// delegating is a run with one call of an agent, and the runs that answer it, each
// with the answer that it gives.
func delegating(observation string, answers ...string) []record {
	all := told{
		{"idle", "planning", "Start", `{}`},
		{"planning", "acting", "LlmToolCall", `{"calls":[{"id":"c","name":"helper","arguments":"{}"}]}`},
		{"acting", "acting", "ToolCallStarted", `{"call_id":"c"}`},
		{"acting", "observing", "ToolSuccess", `{"call_id":"c","success":true,"code":"ok","observation":` + quote(observation) + `}`},
		{"planning", "done", "LlmFinalAnswer", `{}`},
	}.records()
	for i, answer := range answers {
		subrun := told{
			{"idle", "planning", "Start", `{"parent":{"run":"` + auditedRun + `","call_id":"c","depth":1}}`},
			{"planning", "done", "LlmFinalAnswer", `{"content":` + quote(answer) + `}`},
		}
		all = append(all, subrun.recordsOf(subrunID(i), uint64(len(all)))...)
	}
	return all
}

func subrunID(i int) string { return fmt.Sprintf("01890a5d-ac96-774b-bcce-b302099a81%02d", i) }

// A call of an agent is answered by one run, in that run's words, and such a run by
// a call that was made.
func TestAuditOfAgents(t *testing.T) {
	t.Parallel()
	audit := func(records []record, by ...string) string {
		r := &report{}
		a := newAudit(r.found, nil)
		a.read(records)
		carriers := []*carrier{newCarrier(&scenario{run: auditedRun, kind: "delegating"}, nil, newFeed(nil, nil), r.found)}
		for i, call := range by {
			carriers = append(carriers, newCarrier(subrunScenario(subrunID(i), &parent{Run: auditedRun, CallID: call}), nil, newFeed(nil, nil), r.found))
		}
		a.check(carriers)
		return strings.Join(r.findings, "\n")
	}
	require.Empty(t, audit(delegating("SUCCESS: done", "done"), "c"))
	require.Contains(t, audit(delegating("SUCCESS: done", "done", "done"), "c", "c"), "is answered by 2 runs")
	require.Contains(t, audit(delegating("SUCCESS: done")), "has an answer that no run gave")
	require.Contains(t, audit(delegating("SUCCESS: done", "nothing"), "c"), `was answered "SUCCESS: done", the run `+subrunID(0)+` says "nothing"`)
	require.Contains(t, audit(delegating("SUCCESS: done", "done"), "x"), "which it has not made")
	lost := delegating("SUCCESS: done", "done")
	require.Contains(t, audit(append(lost[:6:6], told{
		{"idle", "planning", "Start", `{"parent":{"run":"` + auditedRun + `","call_id":"c","depth":1}}`},
		{"planning", "cancelled", "Cancelled", `{}`},
	}.recordsOf(subrunID(0), 5)[1]), "c"), "ended as cancelled", "its parent waited for it")
}
