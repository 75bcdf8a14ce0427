package webhooks

// health is how a webhook's receiver does. The log has a line for each change of it, and none
// for each notice: a receiver that is away for a day fails thousands.
type health int

const (
	// unsaid is the health of an attempt that says nothing of the receiver, and that of a
	// receiver of which nothing was logged.
	unsaid health = iota
	delivers
	fails
	givesUp
)

// tellHealth logs what an attempt changes of what the log says.
func (r *reader) tellHealth(res result) {
	if down := res.after < 0; down != r.down && (down || res.health != unsaid) {
		if r.down = down; down {
			r.logger.Warn("the bus fails the notices of a webhook, which are tried again", "run", res.p.Run, "reason", res.failed)
		}
	}
	if res.health == unsaid || res.health == r.health || res.health == fails && r.health == givesUp {
		return
	}
	was := r.health
	r.health = res.health
	switch r.health {
	case delivers:
		if was != unsaid {
			r.logger.Info("a webhook takes notices again")
		}
	case fails:
		r.logger.Warn("a webhook takes no notices, which are tried again", "run", res.p.Run, "reason", res.failed, "retry_in", res.after)
	case givesUp:
		r.logger.Error("notices of a webhook are given up: `moorebus webhooks retry` tries them again", "run", res.p.Run, "reason", res.failed)
	}
}
