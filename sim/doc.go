// Package sim runs the whole of Moorebus – planners, actors of several pools,
// observers, gateways and the people in front of them – on a simulated bus in
// virtual time, and lets everything go wrong there. There is nothing to import.
//
// A [scenario] follows from its seed: the processes, when they are killed and for
// how long, the runs with what their models say, what people do to them (they
// fork them, too), and the faults of the bus, which may even lose a delivery. While
// it runs an auditor looks at every append and every acknowledgement, and checks
// what must hold at each moment: that all of it is legal, that what a run wants
// done has a delivery outstanding that is responsible for it (or was lost: then
// the run's timer drives it again), that every run which has not ended has its
// timer, that nothing runs twice or unapproved, that snapshots are the fold. At the end
// the firings of schedules are compared with the times at which they were due, and what
// receivers of webhooks got with the log. A
// scenario that fails is written to a file, which can be run again:
//
//	go test ./sim -run TestSeeds -sim.seeds 10000
//	go test ./sim -run TestReplaySeed -sim.file FILE -sim.times 100
//
// What is a function of the seed, and what is not: run ids, faults, crash points,
// latencies, scripts and people's decisions are. The order in which goroutines
// run that are ready at the same virtual instant is the scheduler's. Deliveries
// come at their own instants (Jitter), so little happens at once: more than half
// of the scenarios go the same way twice, event by event (TestASeedIsAScenario).
// The others can pass when they are run again, so -sim.times repeats them.
//
// TestLiveness holds the table "Who continues a run when a process dies" of
// ARCHITECTURE.md, row by row; see cases_test.go for how to add to it.
package sim
