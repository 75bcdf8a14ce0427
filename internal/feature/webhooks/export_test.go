package webhooks

// Bound has at most n notices wait for each webhook. Call it before [Hooks.Run].
func Bound(h *Hooks, n int) { h.most = n }
