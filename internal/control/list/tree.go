package list

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// maxNodes is how many runs a tree shows.
const maxNodes = 1000

// Tree is a run with all runs that it belongs to.
type Tree struct {
	Root *Node `json:"root"`
	// Truncated says that there are more runs than the tree shows.
	Truncated bool `json:"truncated,omitempty"`
}

// Node is a run in a tree, Children those that answer its calls and its forks, the oldest first.
type Node struct {
	RunID    string   `json:"run_id"`
	Relation Relation `json:"relation"`
	// CallID is the call that a sub-run answers, At the event that a fork continues from.
	CallID   string       `json:"call_id,omitempty"`
	At       uint64       `json:"at,omitempty"`
	Agent    string       `json:"agent"`
	State    events.State `json:"state"`
	Task     string       `json:"task,omitempty"`
	N        uint64       `json:"n"`
	Started  time.Time    `json:"started"`
	Updated  time.Time    `json:"updated"`
	CostUSD  float64      `json:"cost_usd,omitempty"`
	HandOffs []HandOff    `json:"hand_offs,omitempty"`
	Children []*Node      `json:"children,omitempty"`
	// Selected is true for the run that was asked for.
	Selected bool `json:"selected,omitempty"`

	row *row
}

// HandOff is the event by which a run went over to another agent.
type HandOff struct {
	N  uint64 `json:"n"`
	To string `json:"to"`
}

// Relation says how a run belongs to the one above it in a tree.
type Relation string

// The relations of a node.
const (
	RelationRoot Relation = "root"
	RelationSub  Relation = "sub"
	RelationFork Relation = "fork"
)

// Tree returns the tree that a run is in. Its root is the highest run above it that the log has.
// The error for a run that does not exist is a CodeRunNotFound or a CodeRunPurged.
func (l *Lister) Tree(ctx context.Context, ns, id string) (Tree, error) {
	return l.tree(ctx, ns, id, true)
}

// Below returns the tree of a run and the sub-runs below it, without forks. Its errors are those
// of [Lister.Tree].
func (l *Lister) Below(ctx context.Context, ns, id string) (Tree, error) {
	return l.tree(ctx, ns, id, false)
}

func (l *Lister) tree(ctx context.Context, ns, id string, whole bool) (Tree, error) {
	at, err := l.a.Place(ns, id)
	if err != nil {
		return Tree{}, err
	}
	if missing, ends, err := l.index.missing(ctx); err != nil {
		return Tree{}, err
	} else if missing > 0 {
		if err := l.index.catchUp(ctx, ends); err != nil {
			return Tree{}, err
		}
	}
	for {
		if _, err := l.a.Log.Head(ctx, at); errors.Is(err, journal.ErrNotFound) {
			return Tree{}, l.a.Missing(ctx, at)
		} else if err != nil {
			return Tree{}, err
		}
		tree, all := l.index.tree(at, whole)
		if tree.Root == nil {
			return Tree{}, l.a.Missing(ctx, at)
		}
		there, err := l.there(ctx, all)
		if err != nil {
			return Tree{}, err
		}
		if len(there) == len(all) {
			return tree, nil // else purged runs left the index meanwhile
		}
	}
}

// tree returns the tree of a run, and its runs. The root is nil if the index has no such run.
func (x *index) tree(run events.Run, whole bool) (tree Tree, all []match) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	space := x.namespaces[run.Namespace]
	if space == nil || space.runs[run.ID] == nil {
		return tree, nil
	}
	selected := space.runs[run.ID]
	path := map[*row]bool{selected: true} // is shown in any case
	top := selected
	for up := space.runs[top.above()]; whole && up != nil && !path[up]; up = space.runs[top.above()] {
		path[up], top = true, up
	}
	seen := map[*row]bool{top: true}
	tree.Root = top.node(RelationRoot)
	nodes := []*Node{tree.Root}
	for i := 0; i < len(nodes); i++ {
		n := nodes[i]
		n.Selected = n.row == selected
		all = append(all, match{row: n.row})
		below := slices.SortedFunc(slices.Values(space.below[n.RunID]), byStart)
		for _, r := range below {
			switch {
			case seen[r], !whole && r.info.ForkedFrom != nil:
				continue
			case len(nodes) >= maxNodes && !path[r]:
				tree.Truncated = true
				continue
			}
			seen[r] = true
			child := r.node(RelationSub)
			n.Children, nodes = append(n.Children, child), append(nodes, child)
		}
	}
	return tree, all
}

func (r *row) node(relation Relation) *Node {
	n := &Node{
		RunID: r.run.ID, Relation: relation, Agent: r.info.Agent, State: r.info.State, Task: r.info.Task, N: r.info.N,
		Started: r.info.Started, Updated: r.info.Updated, CostUSD: r.info.CostUSD, HandOffs: slices.Clone(r.handOffs), CallID: r.call, row: r,
	}
	if from := r.info.ForkedFrom; from != nil {
		n.At = from.At
		if relation == RelationSub {
			n.Relation = RelationFork
		}
	}
	return n
}
