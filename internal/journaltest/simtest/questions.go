package simtest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/moorebus/moorebus/internal/ports"
)

// answerer is a process that answers a topic's questions.
type answerer struct {
	p      *Process
	ctx    context.Context
	answer func(ctx context.Context, question []byte) []byte
	atWork sync.WaitGroup
}

// Answer answers a topic's questions until stop is called.
func (p *Process) Answer(topic string, answer func(ctx context.Context, question []byte) []byte) (stop func(), err error) {
	if err := p.alive(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	a := &answerer{p: p, ctx: ctx, answer: answer}
	p.j.mu.Lock()
	defer p.j.mu.Unlock()
	p.j.answerers[topic] = append(p.j.answerers[topic], a)
	return func() {
		p.j.mu.Lock()
		p.j.answerers[topic] = slices.DeleteFunc(slices.Clone(p.j.answerers[topic]), func(other *answerer) bool { return other == a })
		p.j.mu.Unlock()
		cancel()
		a.atWork.Wait()
	}, nil
}

// Question asks one of the living processes that answer the topic. What a dead process says is
// not heard.
func (p *Process) Question(ctx context.Context, topic string, question []byte) ([]byte, error) {
	if err := p.alive(); err != nil {
		return nil, err
	}
	p.j.mu.Lock()
	alive := slices.DeleteFunc(slices.Clone(p.j.answerers[topic]), func(a *answerer) bool { return a.p.alive() != nil })
	var a *answerer
	heard := make(chan []byte, 1)
	if len(alive) > 0 {
		a = alive[int(p.j.opts.chance("answerer", topic, string(question), len(alive))*float64(len(alive)))]
		a.atWork.Go(func() { heard <- a.answer(a.ctx, question) })
	}
	p.j.mu.Unlock()
	if a == nil {
		return nil, fmt.Errorf("ask %s: %w", topic, ports.ErrNoAnswer)
	}
	for {
		select {
		case answer := <-heard:
			if a.p.alive() == nil {
				return answer, nil
			}
			heard = nil
		case <-p.dead:
			return nil, ErrCrashed
		case <-ctx.Done():
			return nil, fmt.Errorf("ask %s: %w: %w", topic, ports.ErrNoAnswer, context.Cause(ctx))
		}
	}
}
