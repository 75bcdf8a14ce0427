package web

import "strings"

// Files returns the files by their names under /app.
func (c *Console) Files() map[string]string {
	all := map[string]string{}
	for name, f := range c.files {
		all[strings.TrimPrefix(name, "/app/")] = string(f.data)
	}
	return all
}
