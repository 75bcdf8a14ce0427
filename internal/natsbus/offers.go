package natsbus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

// Offers returns what the gateways remember of announcements. Without the bucket, which
// PutOffers makes, the error is [journal.ErrNotReady].
func (b *Bus) Offers(ctx context.Context) (journal.Offers, error) {
	var o journal.Offers
	msg, err := b.lastMessage(ctx, kvStreamPrefix+offersBucket, kvSubjectPrefix+offersBucket+"."+offersKey)
	if errors.Is(err, journal.ErrNotFound) {
		return o, nil
	}
	if err == nil {
		err = json.Unmarshal(msg.Data, &o)
	}
	if err == nil {
		o.Revision, err = strconv.ParseUint(cmp.Or(header(msg, headerSequence), "0"), 10, 64)
	}
	if err != nil {
		return o, fmt.Errorf("what is remembered of announcements: %w", err)
	}
	return o, nil
}

// PutOffers replaces what Offers returned.
func (b *Bus) PutOffers(ctx context.Context, o journal.Offers) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	msg := nats.NewMsg(kvSubjectPrefix + offersBucket + "." + offersKey)
	msg.Data = body
	msg.Header.Set(headerExpectSeq, strconv.FormatUint(o.Revision, 10))
	_, err = b.store(ctx, msg)
	if errors.Is(err, journal.ErrNotReady) {
		if made := b.createBucket(ctx, offersConfig(b.replicas)); made != nil {
			return errors.Join(err, made)
		}
		_, err = b.store(ctx, msg)
	}
	if err != nil {
		return fmt.Errorf("remember announcements: %w", err)
	}
	return nil
}

// assigned returns the pools of the tools that the operator has assigned.
func (b *Bus) assigned(ctx context.Context) (map[string]string, error) {
	info, err := b.streamInfo(ctx, 0)
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

// owned drops the tools that the operator has assigned to other pools than the one that
// announces them, and says so once.
func (b *Bus) owned(ctx context.Context, tools []events.ToolSpec) ([]events.ToolSpec, error) {
	assigned, err := b.assigned(ctx)
	if err != nil || len(assigned) == 0 {
		return tools, err
	}
	return slices.DeleteFunc(tools, func(t events.ToolSpec) bool {
		pool, listed := assigned[t.Name]
		foreign := listed && pool != t.Pool
		if foreign && b.firstTime("announcement of "+t.Name+" by "+t.Pool) {
			b.log.Warn("an announcement is ignored: the operator has assigned the tool to another pool", "tool", t.Name, "announced_by", t.Pool, "assigned_to", pool)
		}
		return foreign
	}), nil
}
