package natsbus

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/nats-io/nats.go"
)

// The subjects of questions and of their answers. An answer goes to its own subject and
// never to the reply subject of a message, which would go past permissions.
const (
	questionAsks    = "question.ask."
	questionAnswers = "question.answer."
	// answerEnd is the header of an answer's last message.
	answerEnd = "Moorebus-End"
	// answerPart is how much of an answer is in one message, in bytes.
	answerPart = 512 << 10
	// maxAnswers is how many questions of a topic a process answers at once. The others wait.
	maxAnswers = 16
	// answerTime bounds the work on an answer. Nobody waits for it that long.
	answerTime = time.Minute
)

// Question asks one of the processes that answer the topic.
func (b *Bus) Question(ctx context.Context, topic string, question []byte) ([]byte, error) {
	subject, answers := questionAsks+topic, questionAnswers+rand.Text()
	heard := make(chan *nats.Msg, 256)
	sub, err := b.NC.ChanSubscribe(answers, heard)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", topic, api.Classify(err))
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only with the connection
	denied := make(chan error, 1)
	defer b.OnRefused(subject, func(err error) {
		select {
		case denied <- err:
		default:
		}
	})()
	if err := b.NC.PublishMsg(&nats.Msg{Subject: subject, Reply: answers, Data: question}); err != nil {
		return nil, fmt.Errorf("ask %s: %w", topic, api.Classify(err))
	}
	var answer []byte
	for {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("ask %s: %w: %w", topic, ports.ErrNoAnswer, context.Cause(ctx))
		case err := <-denied:
			return nil, err
		case msg := <-heard:
			if msg.Header.Get("Status") != "" {
				return nil, fmt.Errorf("ask %s: %w", topic, ports.ErrNoAnswer)
			}
			answer = append(answer, msg.Data...)
			if msg.Header.Get(answerEnd) != "" {
				return answer, nil
			}
		}
	}
}

// Answer answers a topic's questions until stop is called.
func (b *Bus) Answer(topic string, answer func(ctx context.Context, question []byte) []byte) (stop func(), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex // so that nothing begins while stop waits
	var atWork sync.WaitGroup
	room := make(chan struct{}, maxAnswers)
	sub, err := b.NC.QueueSubscribe(questionAsks+topic, "answerers", func(msg *nats.Msg) {
		id, ok := strings.CutPrefix(msg.Reply, questionAnswers)
		if !ok || id == "" || strings.ContainsAny(id, ".*> \t\r\n") {
			b.Log.Warn("a question has an invalid reply subject", "subject", msg.Subject, "reply", msg.Reply)
			return
		}
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
		}
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() != nil {
			return // a process that gets no answer asks again
		}
		atWork.Go(func() {
			defer func() { <-room }()
			ctx, stop := context.WithTimeout(ctx, answerTime)
			defer stop()
			b.sendAnswer(msg.Reply, answer(ctx, msg.Data))
		})
	})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("answer %s: %w", topic, api.Classify(err))
	}
	return func() {
		_ = sub.Unsubscribe() // fails only with the connection
		mu.Lock()
		cancel()
		mu.Unlock()
		atWork.Wait()
	}, nil
}

// sendAnswer sends an answer in parts. If one does not arrive, the process that asked asks again.
func (b *Bus) sendAnswer(subject string, answer []byte) {
	for {
		part := answer[:min(len(answer), answerPart)]
		answer = answer[len(part):]
		msg := &nats.Msg{Subject: subject, Data: part}
		if len(answer) == 0 {
			msg.Header = nats.Header{answerEnd: {"1"}}
		}
		if err := b.NC.PublishMsg(msg); err != nil || len(answer) == 0 {
			return
		}
	}
}
