// Package plan computes what a load needs: disk, memory, processes, connections. It does
// so from the coefficients of this file, which were measured; the table of the page on
// capacity is made of them.
package plan

import (
	"fmt"
	"strings"
)

// coefficient is a measured number.
type coefficient struct {
	what  string
	value float64
	unit  string
	from  string
}

// The sources of the coefficients: rows of the page's commands, or a default of Moorebus.
const (
	fromDisk    = "disk"
	fromHTTP    = "http"
	fromCluster = "cluster"
	fromScale   = "scale"
	fromMany    = "many"
	fromCost    = "cost"
	fromDefault = "default"
	fromRule    = "rule"
)

// Processor times are about the least of the rounds. Memory for each run of the log is twice
// the heap's content, since Go lets the heap become that large.
var (
	runDisk   = coefficient{"disk for each run", 460, "B", fromDisk}
	eventDisk = coefficient{"disk for each event", 220, "B", fromDisk}
	tokenDisk = coefficient{"disk for each token of text, which is 4 bytes", 1.9, "B", fromDisk}

	gatewayCPU  = coefficient{"processor time of gateways for each run", 1.1, "ms", fromCluster}
	plannerCPU  = coefficient{"processor time of planners for each model call", 0.48, "ms", fromCluster}
	actorCPU    = coefficient{"processor time of actors for each tool call, without the tool's", 0.18, "ms", fromCluster}
	observerCPU = coefficient{"processor time of observers for each step", 0.14, "ms", fromCluster}
	serverCPU   = coefficient{"processor time of a server for each event", 0.12, "ms", fromHTTP}

	roleMemory    = coefficient{"memory of a process of a role without work", 40e6, "B", fromScale}
	callMemory    = coefficient{"memory for each call in flight", 90e3, "B", fromScale}
	tokenMemory   = coefficient{"memory for each token of a call's run", 20, "B", fromScale}
	bodyBytes     = coefficient{"body of an event in memory", 633, "B", fromCost}
	keptRuns      = coefficient{"runs that a role keeps in memory between events, at most", 4096, "", fromDefault}
	keptBytes     = coefficient{"bodies of those runs, at most", 64 << 20, "B", fromDefault}
	keptMemory    = coefficient{"memory by their bodies", 3, "", fromDefault}
	indexMemory   = coefficient{"memory of a gateway for each run of the log", 1.6e3, "B", fromMany}
	subjectMemory = coefficient{"memory of a server for each run of the log", 2.4e3, "B", fromMany}
	serverMemory  = coefficient{"memory of a server with an empty log", 200e6, "B", fromRule}

	shardRate  = coefficient{"events of one shard", 2000, "/s", fromCluster}
	busy       = coefficient{"share of a processor that is used at the peak", 0.5, "", fromRule}
	logShare   = coefficient{"share of a server's storage that the log takes", 2.0 / 3, "", fromDefault}
	plannerMax = coefficient{"model calls in flight of a planner (`--concurrency`)", 256, "", fromDefault}
	actorMax   = coefficient{"tool calls in flight of an actor (`--concurrency`)", 64, "", fromDefault}
	ackPending = coefficient{"deliveries of a state or pool in flight (`init --max-ack-pending`)", 20000, "", fromDefault}
)

// coefficients are all of them, in the order of the page.
var coefficients = []coefficient{
	runDisk, eventDisk, tokenDisk,
	gatewayCPU, plannerCPU, actorCPU, observerCPU, serverCPU,
	roleMemory, callMemory, tokenMemory, bodyBytes, keptRuns, keptBytes, keptMemory, indexMemory, subjectMemory, serverMemory,
	shardRate, busy, logShare, plannerMax, actorMax, ackPending,
}

// Table returns the coefficients as a table in Markdown.
func Table() string {
	var b strings.Builder
	b.WriteString("| coefficient | value | from |\n|---|---|---|\n")
	for _, c := range coefficients {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", c.what, format(c.value, c.unit), c.from)
	}
	return b.String()
}
