package plan

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Load is what a bus has to carry. All runs are alike.
type Load struct {
	RunsPerDay int `json:"runs_per_day"`
	// Steps is how often the model of a run calls tools before it answers, Calls how many
	// tools it calls altogether, and Tokens how much text a run adds: its task, what the
	// model writes and what tools return, each once.
	Steps  int `json:"steps"`
	Calls  int `json:"calls"`
	Tokens int `json:"tokens"`
	// ModelTime and CallTime are how long a model and a tool take to answer, in seconds.
	ModelTime float64 `json:"model_seconds"`
	CallTime  float64 `json:"call_seconds"`
	// Retain is for how many days runs stay in the log, Replicas how many servers keep
	// each event, Peak the rate of the busiest moment by the mean of the day.
	Retain   int     `json:"retain_days"`
	Replicas int     `json:"replicas"`
	Peak     float64 `json:"peak"`
}

// Check names everything that is wrong with the load.
func (l Load) Check() error {
	var errs []error
	refuse := func(is bool, text string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf(text, args...))
		}
	}
	refuse(l.RunsPerDay < 1 || l.RunsPerDay > 1e9, "--runs-per-day is from 1 to 1000000000, not %d", l.RunsPerDay)
	refuse(l.Steps < 0 || l.Steps > 1e6, "--steps is from 0 to 1000000, not %d", l.Steps)
	refuse(l.Tokens < 0 || l.Tokens > 1e9, "--tokens is from 0 to 1000000000, not %d", l.Tokens)
	refuse(l.Steps >= 0 && (l.Calls < l.Steps || l.Calls > 1e7), "--calls is at least --steps, since each step calls a tool, and at most 10000000, not %d", l.Calls)
	refuse(l.Steps == 0 && l.Calls > 0, "--calls is 0 without --steps: a step is a reply of the model that calls tools")
	for _, d := range []struct {
		flag    string
		seconds float64
	}{{"--model-time", l.ModelTime}, {"--call-time", l.CallTime}} {
		refuse(d.seconds < 0, "%s is not negative", d.flag)
	}
	refuse(l.Retain < 1 || l.Retain > 1e5, "--retain is from 1 to 100000 days, not %d", l.Retain)
	refuse(!slices.Contains([]int{1, 3, 5}, l.Replicas), "--replicas is 1, 3 or 5, not %d", l.Replicas)
	refuse(!(l.Peak >= 1 && l.Peak <= 1e5), "--peak is from 1 to 100000, not %v", l.Peak) // NaN is refused too
	return errors.Join(errs...)
}

// Line is one number of a plan. Unit is B, s, /s or empty for a count.
type Line struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"`
	// How says how it was computed.
	How string `json:"how"`
}

// Plan is what a load needs.
type Plan struct {
	Load  Load   `json:"load"`
	Lines []Line `json:"lines"`
}

// Value returns the number of that name, 0 if there is none.
func (p *Plan) Value(name string) float64 {
	for _, line := range p.Lines {
		if line.Name == name {
			return line.Value
		}
	}
	return 0
}

func (p *Plan) add(name string, value float64, unit, how string, args ...any) float64 {
	p.Lines = append(p.Lines, Line{Name: name, Value: value, Unit: unit, How: fmt.Sprintf(how, args...)})
	return value
}

// For computes what the load needs, or returns what is wrong with it.
func For(l Load) (*Plan, error) {
	if err := l.Check(); err != nil {
		return nil, err
	}
	p := &Plan{Load: l}
	p.load()
	p.disk()
	p.processes()
	p.memory()
	return p, nil
}

// load is what happens each second.
func (p *Plan) load() {
	l := p.Load
	replies := float64(l.Steps + 1)
	rate := p.add("runs_per_second", float64(l.RunsPerDay)/86400*l.Peak, "/s", "%d a day, %v times the mean", l.RunsPerDay, l.Peak)
	several := min(l.Steps, l.Calls-l.Steps)
	each := p.add("events_per_run", float64(2+2*l.Steps+l.Calls+several), "",
		"start and answer; 2 for each of %d steps; %d calls; 1 for each of %d steps with several calls", l.Steps, l.Calls, several)
	p.add("events_per_day", each*float64(l.RunsPerDay), "", "%d × events_per_run", l.RunsPerDay)
	p.add("events_per_second", each*rate, "/s", "runs_per_second × events_per_run")
	p.add("run_time", replies*l.ModelTime+float64(l.Steps)*l.CallTime, "s", "%d replies of %vs, and for each step %vs; calls of one step run at once", l.Steps+1, l.ModelTime, l.CallTime)
	p.add("runs_in_progress", rate*p.Value("run_time"), "", "runs_per_second × run_time (Little's law)")
	p.add("model_calls_in_flight", rate*replies*l.ModelTime, "", "runs_per_second × %d × %vs (Little's law)", l.Steps+1, l.ModelTime)
	p.add("tool_calls_in_flight", rate*float64(l.Calls)*l.CallTime, "", "runs_per_second × %d × %vs", l.Calls, l.CallTime)
}

// disk is what each server keeps.
func (p *Plan) disk() {
	l := p.Load
	run := p.add("disk_per_run", runDisk.value+p.Value("events_per_run")*eventDisk.value+float64(l.Tokens)*tokenDisk.value, "B",
		"%s, %s for each event, %s for each token, compressed", runDisk, eventDisk, tokenDisk)
	day := p.add("disk_per_day", run*float64(l.RunsPerDay), "B", "on each server that keeps it")
	kept := p.add("log", day*float64(l.Retain), "B", "%d days on each server; `moorebus purge` removes older runs", l.Retain)
	p.add("disk_of_a_server", kept/logShare.value, "B", "the log may take two thirds of what the server may store")
	p.add("runs_stored", float64(l.RunsPerDay)*float64(l.Retain), "", "%d days", l.Retain)
}

// processes are how many there are of each role.
func (p *Plan) processes() {
	l := p.Load
	rate, least := p.Value("runs_per_second"), 1.0
	if l.Replicas > 1 {
		least = 2 // so that another one is there when one is away
	}
	number := func(role string, cpu coefficient, times float64, of string, inFlight float64, most coefficient) float64 {
		processors := rate * times * cpu.value / 1e3 / busy.value
		n := max(least, math.Ceil(processors), math.Ceil(inFlight/most.value))
		how := fmt.Sprintf("at least %.0f; %.2f processors at half load (%s for each %s)", least, processors, cpu, of)
		if inFlight > 0 {
			how += fmt.Sprintf("; %s calls in flight, at most %s in each", format(inFlight, ""), most)
		}
		return p.add(role, n, "", "%s", how)
	}
	models, tools := p.Value("model_calls_in_flight"), p.Value("tool_calls_in_flight")
	processes := number("planners", plannerCPU, float64(l.Steps+1), "model call", models, plannerMax) +
		number("actors", actorCPU, float64(l.Calls), "tool call", tools, actorMax) +
		number("observers", observerCPU, float64(l.Steps), "step", 0, actorMax) +
		number("gateways", gatewayCPU, 1, "run", 0, actorMax)
	events := p.Value("events_per_second")
	p.add("nats_servers", float64(l.Replicas), "", "each keeps every event")
	p.add("processors_of_a_server", math.Ceil(max(2, events*serverCPU.value/1e3/busy.value)), "", "at least 2; %s for each event, at half load", serverCPU)
	p.add("shards", math.Ceil(events/shardRate.value), "", "%s events in each; cannot be changed once the log exists", shardRate)
	p.add("nats_connections", processes, "", "one for each process of a role")
	p.add("model_connections", math.Ceil(models), "", "one for each call in flight, if the model's server speaks HTTP/1.1: files that planners have open")
	if most := math.Ceil(max(models, tools)); most > ackPending.value {
		p.add("max_ack_pending", most, "", "`moorebus init --max-ack-pending`, `--pool-max-ack-pending`: the default is %s", ackPending)
	}
}

// memory is that of one process of each role.
func (p *Plan) memory() {
	l := p.Load
	text := float64(l.Tokens)
	kept := min(keptBytes.value, keptRuns.value*(p.Value("events_per_run")*bodyBytes.value+4*text)) * keptMemory.value
	worker := func(role string, inFlight float64) {
		each := math.Ceil(inFlight / p.Value(role+"s"))
		p.add(role+"_memory", roleMemory.value+kept+each*(callMemory.value+text*tokenMemory.value), "B",
			"each: %s, %s of runs that it keeps, %.0f calls of %s and %s for each token", roleMemory, format(kept, "B"), each, callMemory, tokenMemory)
	}
	worker("planner", p.Value("model_calls_in_flight"))
	worker("actor", p.Value("tool_calls_in_flight"))
	p.add("observer_memory", roleMemory.value+kept, "B", "each: %s, %s of runs that it keeps", roleMemory, format(kept, "B"))
	runs := p.Value("runs_stored")
	p.add("gateway_memory", roleMemory.value+kept+runs*indexMemory.value, "B", "each: as an observer, and %s for each run in the log", indexMemory)
	p.add("server_memory", serverMemory.value+runs*subjectMemory.value, "B", "each: %s, and %s for each run in the log", serverMemory, subjectMemory)
}

// Text is the name of a line as it is read.
func (l Line) Text() string { return strings.ReplaceAll(l.Name, "_", " ") }

// Amount is the value with its unit, rounded.
func (l Line) Amount() string { return format(l.Value, l.Unit) }

func (c coefficient) String() string { return format(c.value, c.unit) }

// format rounds a number to three digits, and a count to a whole one.
func format(value float64, unit string) string {
	if unit == "B" {
		unit = " B"
		for _, larger := range []string{" kB", " MB", " GB", " TB", " PB"} {
			if value < 999.5 {
				break
			}
			value, unit = value/1e3, larger
		}
	} else if unit != "" && unit != "/s" {
		unit = " " + unit
	}
	if value >= 100 || value == math.Trunc(value) {
		return grouped(value) + unit
	}
	return fmt.Sprintf("%.3g", value) + unit
}

// grouped writes a whole number with commas.
func grouped(value float64) string {
	text := fmt.Sprintf("%.0f", value)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}
