package agent

// The limits of a run. A number is at least 0; 0 turns the limit off where nothing else is
// said. [Builder.Build] reports values that are out of bounds.

// MaxSteps bounds the replies of the model to one message of the user. At least 1, default
// 15.
func (b *Builder) MaxSteps(n int) *Builder {
	b.def.Config.MaxSteps = n
	return b
}

// MaxRetries bounds how often a reply of low confidence is asked for again. Default 3.
func (b *Builder) MaxRetries(n int) *Builder {
	b.def.Config.MaxRetries = n
	return b
}

// ConfidenceThreshold is the confidence, from 0 to 1, below which a reply is asked for
// again. Default 0.4.
func (b *Builder) ConfidenceThreshold(c float64) *Builder {
	b.def.Config.ConfidenceThreshold = c
	return b
}

// ReflectEvery has the model summarize the history after so many steps. Default 5, 0:
// never.
func (b *Builder) ReflectEvery(steps int) *Builder {
	b.def.Config.ReflectEveryNSteps = steps
	return b
}

// MinAnswerLength is the least length of an answer of a task without an output schema.
// Default 1.
func (b *Builder) MinAnswerLength(characters int) *Builder {
	b.def.Config.MinAnswerLength = characters
	return b
}

// ParallelTools says whether the calls of a reply run at once. Default true.
func (b *Builder) ParallelTools(parallel bool) *Builder {
	b.def.Config.ParallelTools = parallel
	return b
}

// ContextWindow is how many messages the model sees. Default 10 in chat mode and all of
// them, which is 0, else.
func (b *Builder) ContextWindow(messages int) *Builder {
	b.def.Config.ContextWindowSize = messages
	return b
}

// ContextWindowStep is by how many messages the window widens, see [Run.ExpandContext].
// Default 10.
func (b *Builder) ContextWindowStep(messages int) *Builder {
	b.def.Config.ExpandContextWindowSize = messages
	return b
}

// WorkingMemory bounds the working memory, in tokens: beyond soft, entries go to the
// storage, and none may take more than hard. Default 4096 and 8192, 0: no bound.
func (b *Builder) WorkingMemory(soft, hard int) *Builder {
	b.def.Config.PagingLimit, b.def.Config.HardLimit = soft, hard
	return b
}

// TokenEstimator names what estimates tokens: "bytes/4", the default, "o200k", or one of
// [Builder.Estimator].
func (b *Builder) TokenEstimator(name string) *Builder {
	b.def.Config.TokenEstimator = name
	return b
}

// ThinkingLog is the length of the thinking log of the text protocol. Default 10.
func (b *Builder) ThinkingLog(entries int) *Builder {
	b.def.Config.ThinkingLogEntries = entries
	return b
}

// MaxIterations bounds the passes of a model that speaks the text protocol since the last
// message of the user. Default 1000.
func (b *Builder) MaxIterations(n int) *Builder {
	b.def.Config.MaxIterations = n
	return b
}

// MaxInvalidReplies bounds how many replies in a row of a model that speaks the text
// protocol may be of no use.
func (b *Builder) MaxInvalidReplies(n int) *Builder {
	b.def.Config.MaxInvalidReplies = &n
	return b
}

// RecordChunks keeps in the log how the text of each reply came. Default false.
func (b *Builder) RecordChunks(record bool) *Builder {
	b.def.Config.RecordChunks = record
	return b
}

// MaxDepth bounds how many runs may stand below one another where agents call agents.
// Default 5, 0: the agent calls none.
func (b *Builder) MaxDepth(n int) *Builder {
	b.def.Config.MaxDepth = n
	return b
}
