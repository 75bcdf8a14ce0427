package main

import (
	"strings"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/pkg/events"
)

// labelsOf reads labels that are given as KEY=VALUE.
func labelsOf(given []string) (events.Labels, error) {
	labels := events.Labels{}
	for _, text := range given {
		key, value, found := strings.Cut(text, "=")
		if !found {
			return nil, cli.Usage("--label %s: want KEY=VALUE", text)
		}
		labels[key] = value
	}
	if err := labels.Check(); err != nil {
		return nil, cli.Usage("--label: %s", err.Error())
	}
	return labels, nil
}
