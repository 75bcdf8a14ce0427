package gateway

// CodeUnknownTable is the code of an [Error] for a run whose transition table this
// gateway does not have: only a program with the run's own graph can read it. The
// fields run and table_hash name both. It is stable.
const CodeUnknownTable = "unknown_table"
