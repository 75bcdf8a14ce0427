// Package schedules starts runs at times that people name.
//
// A schedule is one stored value: its definition, the firings that are pending and those that were
// settled last. It has one alarm on the bus, for when there is something to do next. Whichever
// process gets the alarm reads the schedule and first decides: the firings that are due become
// pending, or are missed or skipped, by compare and set. Then it starts the runs of the pending
// ones. Their ids follow from the schedule and the time, so a run that is started twice is one run.
// Then it stores what became of them, sets the next alarm and acknowledges. So a process may die
// anywhere: the next one finds the same decisions and starts the same runs.
//
// Every gateway also sets all alarms when it starts and now and then. An alarm that is set twice,
// rings twice or is lost does no harm.
package schedules
