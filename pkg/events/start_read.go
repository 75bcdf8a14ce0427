package events

// start reads what opens a run. What few agents have, package json reads: prompts
// by state and models by name.
func (s *scanner) start() *Start {
	p := new(Start)
	s.want(`{"agent":`)
	s.agent(&p.Agent)
	s.want(`,"agent_hash":`)
	p.AgentHash = s.string()
	s.want(`,"task":`)
	p.Task = s.string()
	s.want(`,"mode":`)
	p.Mode = Mode(s.string())
	s.want(`,"task_type":`)
	p.TaskType = s.string()
	s.want(`,"tools":`)
	p.Tools = s.tools()
	s.want(`,"table_hash":`)
	p.TableHash = s.string()
	if s.has(`,"parent":`) {
		p.Parent = s.parent()
	}
	s.want("}")
	return p
}

func (s *scanner) parent() *Parent {
	p := new(Parent)
	s.want(`{"run":`)
	p.Run = s.string()
	s.want(`,"call_id":`)
	p.CallID = s.string()
	if s.has(`,"depth":`) {
		p.Depth = s.small()
	}
	s.want("}")
	return p
}

func (s *scanner) agent(a *Agent) {
	s.want(`{"name":`)
	a.Name = s.string()
	if s.has(`,"description":`) {
		a.Description = s.string()
	}
	if s.has(`,"system_prompt":`) {
		a.SystemPrompt = s.string()
	}
	if s.has(`,"task":`) {
		a.Task = s.string()
	}
	s.want(`,"mode":`)
	a.Mode = Mode(s.string())
	s.want(`,"llm":`)
	s.llm(&a.LLM)
	s.want(`,"config":`)
	s.config(&a.Config)
	if s.has(`,"budget":`) {
		a.Budget = s.budget()
	}
	if s.has(`,"approval":`) {
		a.Approval = s.approval()
	}
	if s.has(`,"output_schema":`) {
		a.OutputSchema = s.raw()
	}
	if s.has(`,"tools":`) {
		a.Tools = s.strings()
	}
	if s.has(`,"blacklist":`) {
		a.Blacklist = s.strings()
	}
	s.want("}")
}

func (s *scanner) llm(l *LLM) {
	s.want(`{"provider":`)
	l.Provider = s.string()
	if s.has(`,"text":`) {
		l.Text = s.bool()
	}
	if s.has(`,"temperature":`) {
		l.Temperature = new(s.float())
	}
	if s.has(`,"top_p":`) {
		l.TopP = new(s.float())
	}
	if s.has(`,"seed":`) {
		l.Seed = new(s.small())
	}
	if s.has(`,"max_tokens":`) {
		l.MaxTokens = s.small()
	}
	if s.has(`,"stop":`) {
		l.Stop = s.strings()
	}
	if s.has(`,"thinking_tokens":`) {
		l.ThinkingTokens = s.small()
	}
	if s.has(`,"script":`) {
		l.Script = s.raw()
	}
	s.want("}")
}

func (s *scanner) config(c *Config) {
	s.want(`{"max_steps":`)
	c.MaxSteps = s.small()
	s.want(`,"max_retries":`)
	c.MaxRetries = s.small()
	s.want(`,"confidence_threshold":`)
	c.ConfidenceThreshold = s.float()
	s.want(`,"reflect_every_n_steps":`)
	c.ReflectEveryNSteps = s.small()
	s.want(`,"min_answer_length":`)
	c.MinAnswerLength = s.small()
	s.want(`,"parallel_tools":`)
	c.ParallelTools = s.bool()
	s.want(`,"context_window_size":`)
	c.ContextWindowSize = s.small()
	s.want(`,"expand_context_window_size":`)
	c.ExpandContextWindowSize = s.small()
	s.want(`,"paging_limit":`)
	c.PagingLimit = s.small()
	s.want(`,"hard_limit":`)
	c.HardLimit = s.small()
	if s.has(`,"token_estimator":`) {
		c.TokenEstimator = s.string()
	}
	s.want(`,"thinking_log_entries":`)
	c.ThinkingLogEntries = s.small()
	s.want(`,"max_iterations":`)
	c.MaxIterations = s.small()
	if s.has(`,"max_invalid_replies":`) {
		c.MaxInvalidReplies = new(s.small())
	}
	if s.has(`,"record_chunks":`) {
		c.RecordChunks = s.bool()
	}
	s.want(`,"max_depth":`)
	c.MaxDepth = s.small()
	s.want("}")
}

func (s *scanner) budget() *Budget {
	b := new(Budget)
	m := s.members()
	if m.has(`"max_input_tokens":`) {
		b.MaxInputTokens = s.small()
	}
	if m.has(`"max_output_tokens":`) {
		b.MaxOutputTokens = s.small()
	}
	if m.has(`"max_total_tokens":`) {
		b.MaxTotalTokens = s.small()
	}
	if m.has(`"max_cost_usd":`) {
		b.MaxCostUSD = s.float()
	}
	if m.has(`"max_wall_time":`) {
		b.MaxWallTime = s.duration()
	}
	s.want("}")
	return b
}

// members reads an object every member of which can be missing.
type members struct {
	*scanner
	begun bool
}

func (s *scanner) members() *members {
	s.want("{")
	return &members{scanner: s}
}

// has takes the key if it comes next.
func (m *members) has(key string) bool {
	before := m.at
	if (!m.begun || m.scanner.has(",")) && m.scanner.has(key) {
		m.begun = true
		return true
	}
	m.at = before
	return false
}

func (s *scanner) duration() Duration {
	var d Duration
	text := s.string()
	s.hold(!s.bad && d.UnmarshalText([]byte(text)) == nil)
	return d
}

func (s *scanner) approval() *Approval {
	a := new(Approval)
	s.want(`{"policy":`)
	a.Policy = ApprovalPolicy(s.string())
	if s.has(`,"risk":`) {
		a.Risk = s.string()
	}
	if s.has(`,"tools":`) {
		a.Tools = s.strings()
	}
	if s.has(`,"expr":`) {
		a.Expr = s.string()
	}
	if s.has(`,"expires":`) {
		a.Expires = s.duration()
	}
	if s.has(`,"outcome_unknown":`) {
		a.OutcomeUnknown = OutcomePolicy(s.string())
	}
	s.want("}")
	return a
}

func (s *scanner) tools() []ToolSpec {
	var tools []ToolSpec
	n := s.list(func() {
		var t ToolSpec
		s.want(`{"name":`)
		t.Name = s.string()
		s.want(`,"description":`)
		t.Description = s.string()
		s.want(`,"schema":`)
		t.Schema = s.raw()
		s.want(`,"effect":`)
		t.Effect = s.string()
		s.want(`,"pool":`)
		t.Pool = s.string()
		s.want(`,"risk":`)
		t.Risk = s.string()
		if s.has(`,"asks":`) {
			t.Asks = s.bool()
		}
		s.want("}")
		tools = append(tools, t)
	})
	if n == 0 {
		return []ToolSpec{}
	}
	return tools
}

func (s *scanner) strings() []string {
	var texts []string
	n := s.list(func() { texts = append(texts, s.string()) })
	if n == 0 {
		return []string{}
	}
	return texts
}
