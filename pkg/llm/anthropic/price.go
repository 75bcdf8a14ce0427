package anthropic

import "github.com/moorebus/moorebus/pkg/llm"

var _ llm.Defaulting = (*Caller)(nil)

// DefaultModel returns the model that is asked where a request names none.
func (c *Caller) DefaultModel() string { return c.opts.Model }
