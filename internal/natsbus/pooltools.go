package natsbus

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
)

// ToolPools returns the pools of the tools that the operator has assigned.
func (b *Bus) ToolPools(ctx context.Context) (map[string]string, error) {
	info, err := b.shardInfo(ctx, 0)
	if err != nil {
		return nil, err
	}
	byPool, err := readPoolTools(info.Config.Metadata)
	if err != nil {
		return nil, err
	}
	pools := map[string]string{}
	for pool, tools := range byPool {
		for _, tool := range tools {
			pools[tool] = pool
		}
	}
	return pools, nil
}

// readPoolTools reads the operator's lists from the first stream's metadata.
func readPoolTools(metadata map[string]string) (map[string][]string, error) {
	byPool := map[string][]string{}
	text := metadata[metaTools]
	if text == "" {
		return byPool, nil
	}
	if err := json.Unmarshal([]byte(text), &byPool); err != nil {
		return nil, fmt.Errorf("stream %s: %s in its metadata is not a list of tools by pool: %w", events.StreamName(0), metaTools, err)
	}
	return byPool, nil
}

// withPoolTools adds the operator's lists to the metadata of the first stream: a pool that
// is named gets its list anew, none with an empty one; others keep theirs.
func withPoolTools(metadata, old map[string]string, lists map[string][]string) error {
	if revision, said := old[metaRevision]; said {
		metadata[metaRevision] = revision
	}
	byPool, err := readPoolTools(old)
	if err != nil {
		return err
	}
	for pool, tools := range lists {
		if len(tools) == 0 {
			delete(byPool, pool)
			continue
		}
		tools = slices.Clone(tools)
		slices.Sort(tools)
		byPool[pool] = slices.Compact(tools)
	}
	if err := CheckPoolTools(byPool); err != nil {
		return err
	}
	if len(byPool) == 0 {
		return nil
	}
	text, err := json.Marshal(byPool)
	metadata[metaTools] = string(text)
	return err
}

// CheckPoolTools returns what is wrong with lists of tools by pool: a tool belongs to one.
func CheckPoolTools(byPool map[string][]string) error {
	of := map[string]string{}
	for _, pool := range slices.Sorted(maps.Keys(byPool)) {
		if !events.ValidToken(pool) {
			return fmt.Errorf("pool %q is not a token of [a-z0-9][a-z0-9_-]{0,62}", pool)
		}
		for _, tool := range byPool[pool] {
			if tool == "" || strings.ContainsAny(tool, "/ ,") {
				return fmt.Errorf("pool %s: %q is not the name of a tool", pool, tool)
			}
			if other, taken := of[tool]; taken && other != pool {
				return fmt.Errorf("the tool %s is assigned to the pools %s and %s: a tool belongs to one; `--pool-tools %s=` takes a pool's list away", tool, other, pool, other)
			}
			of[tool] = pool
		}
	}
	return nil
}
