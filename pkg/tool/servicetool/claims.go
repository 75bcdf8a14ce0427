package servicetool

import (
	"maps"
	"slices"
	"strings"
)

// maxPatterns limits how many subjects with wildcards are checked for each tool.
const maxPatterns = 1000

// claims are the services that have endpoints, by subject.
type claims struct {
	exact map[string][]string
	// patterns are subjects with wildcards, each with one service.
	patterns [][2]string
}

// claims returns who has an endpoint where. A service that names the subject of another one as its
// own would have actors, which may send to both, call the other's endpoint under its own name,
// class and risk.
func (d *discovery) claims() claims {
	c := claims{exact: map[string][]string{}}
	for _, name := range slices.Sorted(maps.Keys(d.services)) {
		own := map[string]bool{}
		for _, i := range d.services[name].instances {
			for _, subject := range i.subjects {
				own[subject] = true
			}
		}
		for subject := range own {
			if !strings.ContainsAny(subject, "*>") {
				c.exact[subject] = append(c.exact[subject], name)
			} else if len(c.patterns) < maxPatterns {
				c.patterns = append(c.patterns, [2]string{subject, name})
			}
		}
	}
	return c
}

// by returns the services that have an endpoint on a subject, sorted.
func (c claims) by(subject string) []string {
	services := slices.Clone(c.exact[subject])
	for _, p := range c.patterns {
		if covers(p[0], subject) {
			services = append(services, p[1])
		}
	}
	slices.Sort(services)
	return slices.Compact(services)
}

// covers reports whether a subject with wildcards matches another one.
func covers(pattern, subject string) bool {
	tokens := strings.Split(subject, ".")
	for i, p := range strings.Split(pattern, ".") {
		switch {
		case p == ">":
			return i < len(tokens)
		case i >= len(tokens) || p != "*" && p != tokens[i]:
			return false
		}
	}
	return strings.Count(pattern, ".") == len(tokens)-1
}

// owns reports whether a service may have a tool on a subject, on which the services have
// endpoints: it is the only one, or had it first. Of several that were found at once it is the one
// that the tool file names, else none.
func (d *discovery) owns(name, subject string, services []string) bool {
	first, known := d.subjects[subject]
	if !known || !slices.Contains(services, first) {
		if first = ""; len(services) > 1 {
			services = slices.DeleteFunc(services, func(s string) bool { return !d.named(s) })
		}
		if len(services) == 1 {
			first = services[0]
			if known || len(d.subjects) < maxTools {
				d.subjects[subject] = first
			}
		}
	}
	return first == name
}
