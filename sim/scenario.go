package sim

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool/builtin"
)

// scenario is everything that a simulation does, as far as it can be said
// beforehand. It is what a failing seed's file holds.
type scenario struct {
	Seed   uint64         `json:"seed"`
	Shards int            `json:"shards"`
	Faults simtest.Faults `json:"faults"`
	// GroupCommit gathers a process's appends of several runs into batches.
	GroupCommit bool          `json:"group_commit"`
	AppendTime  time.Duration `json:"append_time"`
	// Fetches lets processes fetch records by their numbers.
	Fetches bool          `json:"fetches"`
	AckWait time.Duration `json:"ack_wait"`
	// CrashOneIn is how many crash points a process passes on average before one
	// strikes, MostCrashes how many strike in all; 0: none.
	// Stall is how long work may stand still until it is re-driven.
	Stall time.Duration `json:"stall"`
	// Queues has every run queued until it is admitted.
	Queues bool `json:"queues,omitempty"`
	// PoolWait is how long a pool without an actor is waited for; 0: as usual.
	PoolWait time.Duration `json:"pool_wait"`
	// LoseOneIn is how many deliveries come on average before one of a run is
	// lost for good; 0: none is.
	LoseOneIn int `json:"lose_one_in"`
	// SnapshotEvery is the observers' rhythm; 0: they take none.
	SnapshotEvery int `json:"snapshot_every"`
	CrashOneIn    int `json:"crash_one_in"`
	// CrashBatches has crashes strike at appends of several runs at once, and
	// nowhere else.
	CrashBatches bool          `json:"crash_batches,omitempty"`
	MostCrashes  int           `json:"most_crashes"`
	Processes    []processSpec `json:"processes"`
	Kills        []killSpec    `json:"kills"`
	Runs         []runSpec     `json:"runs"`
	// Schedules start runs beside them.
	Schedules []scheduleSpec `json:"schedules,omitempty"`
	Hooks     []hookSpec     `json:"hooks,omitempty"`
	// Led says that all builds on the bus know runs that are led.
	Led bool `json:"led,omitempty"`
}

// processSpec is one process, which comes back after it died.
type processSpec struct {
	Roles []string `json:"roles"`
	// Pools are an actor's; none: all.
	Pools []string `json:"pools,omitempty"`
	// Half, 1 or 2, says that an actor has only every other of its pools' tools.
	Half int `json:"half,omitempty"`
	// Shared says that its roles share what they hold in memory.
	Shared bool `json:"shared"`
	// Follows says that a process with every role decides without a delivery what follows
	// from its events.
	Follows bool `json:"follows,omitempty"`
	// Leads says that a process leads runs through the states of its roles.
	Leads       bool `json:"leads,omitempty"`
	Concurrency int  `json:"concurrency"`
	// Capacity is how many runs are kept that nobody uses; 0: many.
	Capacity int `json:"capacity"`
	// Down is how long it is away.
	Down time.Duration `json:"down"`
}

// killSpec ends a process at a time: as kill -9 does, or gently as SIGTERM does.
type killSpec struct {
	At      time.Duration `json:"at"`
	Process int           `json:"process"`
	Gently  bool          `json:"gently"`
	// For is how long it is away; 0: as long as usual.
	For time.Duration `json:"for,omitempty"`
}

// runSpec is one run and its people.
type runSpec struct {
	ID string `json:"id"`
	// At is when it is started.
	At    time.Duration `json:"at"`
	Agent events.Agent  `json:"agent"`
	// Turns is how many messages a conversation has.
	Turns int       `json:"turns"`
	Acts  []actSpec `json:"acts"`
	// Chance seeds the people's decisions.
	Chance uint64 `json:"chance"`
	// Ends are the codes of the errors that the run may end with.
	Ends []string `json:"ends"`
}

// actSpec is something that people do to a run without being asked.
type actSpec struct {
	At   time.Duration `json:"at"`
	Kind string        `json:"kind"`
	// For is how long a pause lasts.
	For time.Duration `json:"for,omitempty"`
	// Patch is what a fork changes.
	Patch string `json:"patch,omitempty"`
}

// The kinds of acts.
const (
	actCancel = "cancel"
	actSay    = "say"
	actPause  = "pause"
	actResume = "resume"
	actBudget = "budget"
	actKeep   = "keep"
	actExpand = "expand"
	actPoison = "poison"
	actFork   = "fork"
	actAdd    = "add"
)

const (
	rolePlanner  = "planner"
	roleActor    = "actor"
	roleObserver = "observer"
	roleGateway  = "gateway"
)

var pools = []string{"default", "web", "math"}

// calm reports whether nothing goes wrong, so that nothing may be tried twice.
func (s *scenario) calm() bool {
	return s.CrashOneIn == 0 && s.Faults == simtest.Faults{} && len(s.Kills) == 0
}

// draw makes scenarios.
type draw struct{ *rand.Rand }

// newScenario draws the scenario of a seed.
func newScenario(seed uint64) *scenario {
	d := draw{rand.New(rand.NewPCG(seed, 1))}
	s := &scenario{Seed: seed, Shards: 1 + d.IntN(3), AckWait: 15 * time.Second}
	if !d.oneIn(6) { // else nothing goes wrong that people do not do
		s.Faults = d.faults()
		s.CrashOneIn, s.MostCrashes = 10+d.IntN(40), d.IntN(6)
	}
	s.Processes = d.processes()
	for range d.IntN(6) {
		s.Kills = append(s.Kills, killSpec{At: d.upTo(90 * time.Second), Process: d.IntN(len(s.Processes)), Gently: d.oneIn(3)})
	}
	if s.CrashOneIn == 0 {
		s.Kills = nil
	}
	for i := range 1 + d.IntN(5) {
		s.Runs = append(s.Runs, d.run(seed, i))
	}
	s.time(d)
	s.speakText()
	s.group(draw{rand.New(rand.NewPCG(seed, 5))})
	s.fetch(draw{rand.New(rand.NewPCG(seed, 6))})
	s.strike(draw{rand.New(rand.NewPCG(seed, 7))})
	s.follow(draw{rand.New(rand.NewPCG(seed, 8))})
	s.ofClients(draw{rand.New(rand.NewPCG(seed, 9))})
	s.Queues = draw{rand.New(rand.NewPCG(seed, 10))}.oneIn(6)
	s.schedule(draw{rand.New(rand.NewPCG(seed, 11))})
	s.hook(draw{rand.New(rand.NewPCG(seed, 12))})
	s.lead(draw{rand.New(rand.NewPCG(seed, 13))})
	return s
}

// follow has two of three processes with every role decide without a delivery what follows
// from their events.
func (s *scenario) follow(d draw) {
	for i := range s.Processes {
		s.Processes[i].Follows = len(s.Processes[i].Roles) == len(owned) && !d.oneIn(3)
	}
}

// lead has half of the scenarios' new runs be ones that may be led, and most processes that share what
// they hold lead them. The others hand them over.
func (s *scenario) lead(d draw) {
	s.Led = d.oneIn(2)
	for i := range s.Processes {
		s.Processes[i].Leads = s.Led && s.Processes[i].Shared && !d.oneIn(4)
	}
}

// fetch draws a log that gives out single records, which two of three scenarios
// have, and its faults.
func (s *scenario) fetch(d draw) {
	s.Fetches = !d.oneIn(3)
	if s.Fetches && s.CrashOneIn > 0 && d.oneIn(2) {
		s.Faults.Fetch = 0.5 * d.Float64()
	}
}

// strike has some scenarios come to what chance alone rarely leads to: crashes at
// batches of several runs, and storage that stays away.
func (s *scenario) strike(d draw) {
	if s.CrashOneIn == 0 {
		return
	}
	s.CrashBatches = s.GroupCommit && d.oneIn(2)
	if d.oneIn(6) {
		s.Faults.Bucket = 0.25 + 0.1*d.Float64()
	}
}

// group draws group commit, which every other scenario has, and its faults.
func (s *scenario) group(d draw) {
	s.GroupCommit, s.AppendTime = d.oneIn(2), 10*time.Millisecond+d.upTo(300*time.Millisecond)
	if s.GroupCommit && d.oneIn(2) {
		s.Shards = 1 // so that more meet
	}
	if s.GroupCommit && s.CrashOneIn > 0 {
		s.Faults.BatchUnknown, s.Faults.BatchLost = 0.3*d.Float64(), 0.3*d.Float64()
	}
}

// time draws what timers and long absences are about.
func (s *scenario) time(d draw) {
	s.Stall = 15*time.Minute + d.upTo(15*time.Minute)
	s.PoolWait = 5*time.Second + d.upTo(25*time.Second)
	if d.oneIn(2) {
		s.SnapshotEvery = 3 + d.IntN(8)
	}
	if s.CrashOneIn > 0 && d.oneIn(10) {
		s.LoseOneIn = 10 + d.IntN(30)
	}
	if s.CrashOneIn > 0 && d.oneIn(4) {
		s.outage(d)
	}
	if s.CrashOneIn > 0 && d.oneIn(8) { // work that takes its time is taken for stuck
		s.Stall = 10*time.Second + d.upTo(time.Minute)
		for i := range s.Runs {
			s.Runs[i].Ends = append(s.Runs[i].Ends, codes.Stalled)
		}
	}
}

// outage takes a role or a pool away, for longer than it is waited for.
func (s *scenario) outage(d draw) {
	what := append([]string{rolePlanner, roleActor, roleObserver, roleGateway, roleActor, roleSubagent}, pools...)[d.IntN(6+len(pools))]
	s.away(what, d.upTo(40*time.Second), time.Minute+d.upTo(2*time.Minute), d)
}

// away ends all processes that have a role or a pool.
func (s *scenario) away(what string, at, length time.Duration, d draw) {
	for i, p := range s.Processes {
		if contains(p.Roles, what) || contains(p.Pools, what) {
			s.Kills = append(s.Kills, killSpec{At: at + d.upTo(time.Second), Process: i, For: length, Gently: d.oneIn(2)})
		}
	}
}

func (d draw) oneIn(n int) bool { return d.IntN(n) == 0 }

func (d draw) upTo(most time.Duration) time.Duration {
	return time.Duration(d.Int64N(int64(most))).Truncate(time.Millisecond)
}

// faults are some of the kinds, some of the time.
func (d draw) faults() simtest.Faults {
	some := func() float64 {
		if d.oneIn(2) {
			return 0
		}
		return 0.4 * d.Float64()
	}
	return simtest.Faults{
		Delay: some(), Duplicate: some(), Reorder: some(), LoseAck: some(), UnknownOutcome: some(), Lost: some(),
		Bucket: some() / 4, MaxDelay: time.Second + d.upTo(20*time.Second),
	}
}

// processes are either whole installations in one process each, or one role
// each; every role and every pool is served by at least one.
func (d draw) processes() []processSpec {
	spec := func(roles ...string) processSpec {
		p := processSpec{Roles: roles, Shared: d.oneIn(2), Concurrency: 1 + d.IntN(4), Down: d.upTo(5 * time.Second)}
		if d.oneIn(3) {
			p.Capacity = 1
		}
		return p
	}
	var all []processSpec
	if d.oneIn(2) {
		for range 1 + d.IntN(3) {
			all = append(all, spec(rolePlanner, roleActor, roleObserver, roleGateway, roleSubagent))
		}
		return all
	}
	for _, role := range []string{rolePlanner, roleObserver, roleGateway, roleSubagent} {
		for range 1 + d.IntN(2) {
			all = append(all, spec(role))
		}
	}
	actors := []processSpec{spec(roleActor), spec(roleActor)}
	if d.oneIn(2) {
		actors[0].Pools, actors[1].Pools = pools[:1], pools[1:]
	} else {
		actors[0].Half, actors[1].Half = 1, 2
	}
	return append(all, actors...)
}

// run draws a run. Its id has the form of a UUIDv7.
func (d draw) run(seed uint64, i int) runSpec {
	r := runSpec{
		ID: fmt.Sprintf("%08x-%04x-7%03x-8000-%012x", uint32(seed>>16), uint16(seed), i, d.Uint64()>>16),
		At: d.upTo(3 * time.Second), Agent: d.agent(), Turns: 1, Chance: d.Uint64(),
	}
	if r.Agent.Mode == events.ModeChat {
		r.Turns += d.IntN(3)
	}
	if r.Agent.Config.MaxSteps < 20 {
		r.Ends = append(r.Ends, "max_steps", "safety_cap_exceeded")
	}
	if r.Agent.Budget != nil {
		r.Ends = append(r.Ends, "budget_total_tokens", codes.WallTime)
	}
	for range d.IntN(6) {
		d.act(&r)
	}
	return r
}

var actKinds = []string{
	actSay, actSay, actSay, actPause, actPause, actPause, actResume, actResume, actBudget, actKeep, actExpand, actCancel, actPoison,
	actFork, actFork, actAdd,
}

// act adds something that people do to the run.
func (d draw) act(r *runSpec) {
	act := actSpec{At: d.upTo(60 * time.Second), Kind: actKinds[d.IntN(len(actKinds))]}
	switch act.Kind {
	case actPause:
		act.For = d.upTo(30 * time.Second)
	case actFork:
		act.Patch = patches[d.IntN(len(patches))]
	case actPoison:
		if d.oneIn(2) {
			act.Kind = actSay
		} else {
			r.Ends = append(r.Ends, "poison")
		}
	}
	r.Acts = append(r.Acts, act)
}

// patches are what forks change, mostly nothing.
var patches = []string{
	"", "", "", `{"task":"Do another thing."}`, `{"mode":"chat"}`,
	`{"approval":{"policy":"always","expires":"20s"}}`, `{"approval":{"policy":"tools","tools":["pay","sum"],"outcome_unknown":"ask"}}`,
}

// fork is the spec of a run that was forked from the one of r.
func (r *runSpec) fork(id string, chance uint64) *runSpec {
	fork := &runSpec{ID: id, Agent: r.Agent, Turns: r.Turns, Chance: chance, Ends: slices.Clone(r.Ends)}
	d := draw{rand.New(rand.NewPCG(chance, 3))}
	for range d.IntN(4) {
		d.act(fork)
	}
	return fork
}

func (d draw) agent() events.Agent {
	a := events.DefaultAgent()
	a.Config.MinAnswerLength = 5 // "no" is too short
	a.Name, a.Mode = "simulated", events.ModeTask
	if d.oneIn(3) {
		a.Mode = events.ModeChat
	}
	a.Config.MaxSteps = 200
	if d.oneIn(15) {
		a.Config.MaxSteps = 1 + d.IntN(6)
	}
	a.Config.ParallelTools = !d.oneIn(3)
	a.Config.ReflectEveryNSteps = d.IntN(4)
	a.Approval = d.approval()
	a.Blacklist = []string{"forbidden"}
	for _, def := range toolDefinitions {
		a.Tools = append(a.Tools, def.Name)
	}
	a.Tools = append(a.Tools, builtin.MemoryNames()...)
	d.memory(&a.Config)
	for _, t := range agentTools {
		a.Tools = append(a.Tools, t.Definition().Name)
	}
	if d.oneIn(20) {
		a.Budget = &events.Budget{MaxTotalTokens: 200 + d.IntN(4000)}
	}
	if d.oneIn(15) {
		a.Budget = &events.Budget{MaxWallTime: events.Duration(5*time.Second + d.upTo(time.Minute))}
	}
	a.LLM.Provider = "scripted"
	a.LLM.Script = d.script(a.Mode)
	return a
}

func (d draw) approval() *events.Approval {
	a := &events.Approval{}
	switch d.IntN(8) {
	case 0:
		a.Policy = events.ApproveAlways
	case 1:
		a.Policy, a.Risk = events.ApproveAbove, "low"
	case 2:
		a.Policy, a.Tools = events.ApproveTools, []string{"pay", "look"}
	case 3:
		a.Policy, a.Expr = events.ApproveExpr, `tool == "pay" || (risk == "medium" && arguments.n > 3)`
	case 4:
		a.Policy, a.OutcomeUnknown = events.ApproveNever, events.AskHuman
	default:
		return nil
	}
	if d.oneIn(3) {
		a.OutcomeUnknown = events.AskHuman
	}
	if d.oneIn(3) {
		a.Expires = events.Duration(10*time.Second + d.upTo(30*time.Second))
	}
	return a
}

type scriptEntry map[string]any

// script draws what a model says: a few replies of every kind, and then enough
// words to end whatever is asked.
func (d draw) script(mode events.Mode) json.RawMessage {
	var all []scriptEntry
	for range 1 + d.IntN(6) {
		reply := d.reply(mode)
		if reply["error"] == nil {
			reply["usage"] = map[string]int{"input": d.IntN(300), "output": d.IntN(100)}
		}
		all = append(all, reply)
	}
	for range 40 {
		all = append(all, scriptEntry{"text": lastWords})
	}
	text, err := json.Marshal(all)
	if err != nil {
		panic(err)
	}
	return text
}

// lastWords is every simulated run's answer.
const lastWords = "All of it is done."

func (d draw) reply(mode events.Mode) scriptEntry {
	switch d.IntN(16) {
	case 0:
		return scriptEntry{"error": map[string]any{"kind": "overloaded", "message": "later"}}
	case 1:
		return scriptEntry{"error": map[string]any{"kind": "rate_limited", "retry_after_ms": 1 + d.IntN(40_000)}}
	case 2:
		return scriptEntry{"calls": d.calls(1 + d.IntN(2)), "confidence": 0.1}
	case 3:
		return scriptEntry{"calls": []scriptEntry{{"name": "forbidden"}}}
	case 4:
		calls := append(d.calls(d.IntN(3)), scriptEntry{"name": "unheard_of"}, scriptEntry{"name": "forbidden"})
		return scriptEntry{"content": "I try this.", "calls": calls}
	case 5:
		return scriptEntry{"calls": []scriptEntry{{"name": "look", "arguments": "no object"}}}
	case 6:
		if mode == events.ModeTask {
			return scriptEntry{"text": "no"} // too short
		}
		return scriptEntry{"text": lastWords}
	case 7, 8, 9, 10:
		return scriptEntry{"calls": d.calls(2 + d.IntN(3))}
	case 11:
		return d.edits()
	}
	return scriptEntry{"content": "One thing.", "calls": d.calls(1)}
}

// edits is a reply that edits its own context, where it may.
func (d draw) edits() scriptEntry {
	all := []scriptEntry{
		{"name": "moorebus_load_messages", "arguments": map[string]int{"count": 1 + d.IntN(5)}},
		{"name": "moorebus_search_tool_calls", "arguments": map[string]int{"limit": d.IntN(3)}},
		{"name": "moorebus_load_tool_result", "arguments": map[string][]string{"call_ids": {"call_1_1", "unheard_of"}}},
	}
	d.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return scriptEntry{"content": "Let me see.", "calls": append(all[:1+d.IntN(3)], d.calls(d.IntN(3))...)}
}

func (d draw) calls(n int) []scriptEntry {
	calls := make([]scriptEntry, n)
	for i := range calls {
		if d.oneIn(4) {
			calls[i] = d.memoryCall()
			continue
		}
		name := toolDefinitions[d.IntN(len(toolDefinitions)-1)].Name // the last one is forbidden
		calls[i] = scriptEntry{"name": name, "arguments": map[string]int{"n": d.IntN(10)}}
		if d.oneIn(6) {
			calls[i] = scriptEntry{"name": agentNames[d.IntN(len(agentNames))], "arguments": map[string]string{"task": "Do a part of it."}}
			if d.oneIn(3) {
				calls[i] = scriptEntry{"name": handsOver}
			}
		}
	}
	return calls
}

// revision is what all builds on the bus know.
func (s *scenario) revision() int {
	if s.Led {
		return reducer.Revision
	}
	return 0
}
