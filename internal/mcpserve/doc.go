// Package mcpserve offers agents as tools to programs that speak MCP.
//
// Each agent is a tool of its name with one argument, the task. A call starts a run
// and waits for its end: the answer is the text of the result, a run that ends in
// an error is a result with isError, and the run's id is in both. While it waits, a
// client that gave a progress token hears of every transition. A call that the
// client cancels, or that outlives its client or this server, cancels its run.
package mcpserve
