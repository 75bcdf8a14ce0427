// Package mcpserve offers agents as tools to programs that speak MCP.
//
// Each agent is a tool of the same name with one argument, the task. A call starts a run and
// waits for its end. The text of the result is the answer; a run that ends in an error is a
// result with isError. Both hold the run's id. A client that sent a progress token gets every
// transition. If the client cancels the call or disconnects, or the server ends, the run is
// cancelled.
package mcpserve
