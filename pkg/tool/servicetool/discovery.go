package servicetool

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/truncate"
	"github.com/moorebus/moorebus/pkg/tool"
)

const (
	// maxMissed is how many questions in a row an instance may leave unanswered. Only those
	// that were sent count.
	maxMissed = 10
	// settle is how long answers are collected before tools are offered. firstWait is how
	// long the first answer of a named service is waited for.
	settle    = 100 * time.Millisecond
	firstWait = 3 * time.Second
	// maxAnswer bounds one answer, in bytes: instances send it again and again.
	maxAnswer = 256 << 10
	// maxInstances bounds the instances that are known, maxSaid the warnings, maxTools
	// the tools that are remembered.
	maxInstances = 2000
	maxSaid      = 1000
	maxTools     = 2000

	requestTimeout = 5 * time.Second
)

// instance is a living instance of a service.
type instance struct {
	answer [sha256.Size]byte // the digest of its last answer
	offers []offer
	// subjects are those of all its endpoints, of tools and others.
	subjects []string
	missed   int
}

// service is what is known of a service.
type service struct {
	instances map[string]*instance
	// tools are its tools as they were offered last.
	tools map[string]*offer
}

// question is a subject on which services are asked, and the service that it names. A service
// that gets one question cannot answer another one: each has its own reply subject.
type question struct {
	Service
	subject  string
	reply    string
	answered bool
}

// discovery asks for services and offers their tools. One goroutine uses it.
type discovery struct {
	source  *services
	client  *api.Client
	logger  *slog.Logger
	put     func([]tool.Tool)
	asked   []*question
	refused chan error

	services  map[string]*service
	instances int
	// owners are the services that runs know as those of a tool, subjects those that had a
	// subject first.
	owners   map[string]string
	subjects map[string]string
	said     map[string]bool
}

func newDiscovery(s *services, client *api.Client, logger *slog.Logger, put func([]tool.Tool)) *discovery {
	d := &discovery{
		source: s, client: client, logger: logger, put: put, refused: make(chan error, 1),
		services: map[string]*service{}, owners: map[string]string{}, subjects: map[string]string{}, said: map[string]bool{},
	}
	for _, named := range s.opts.Services {
		d.asked = append(d.asked, &question{Service: named, subject: api.ServiceInfo + "." + named.Name, reply: newReply(client.NC)})
	}
	if s.opts.All {
		d.asked = append(d.asked, &question{subject: api.ServiceInfo, reply: newReply(client.NC)})
	}
	return d
}

// run asks until ctx ends. The error is the connection's.
func (d *discovery) run(ctx context.Context) error {
	answers := make(chan *nats.Msg, 1024)
	for _, q := range d.asked {
		sub, err := d.client.NC.ChanSubscribe(q.reply, answers)
		if err != nil {
			return err
		}
		defer func() { _ = sub.Unsubscribe() }() // it fails only if the connection is closed
		defer d.client.OnRefused(q.subject, func(err error) {
			select {
			case d.refused <- err:
			default:
			}
		})()
	}
	asking, settled := time.NewTicker(d.source.opts.Every), time.NewTimer(firstWait)
	first, settling := true, false
	defer asking.Stop()
	defer settled.Stop()
	d.ask()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-d.refused:
			d.warn(fmt.Errorf("%w: print the permissions again, with --service (`moorebus init --print-permissions`)", err))
		case msg := <-answers:
			changed := d.hear(msg)
			if !settling && (first && d.allAnswered() || !first && changed) {
				settling = true
				settled.Reset(settle)
			}
		case <-settled.C:
			first, settling = false, false
			d.offer()
		case <-asking.C:
			if d.ask() && !first {
				d.offer()
			}
		}
	}
}

// ask asks all questions, and reports whether an instance is gone.
func (d *discovery) ask() (gone bool) {
	if !d.client.NC.IsConnected() {
		return false
	}
	for name, s := range d.services {
		for id, i := range s.instances {
			if i.missed++; i.missed > maxMissed {
				delete(s.instances, id)
				d.instances--
				gone = true
				d.logger.Info("an instance of a NATS service is gone", "service", name, "instance", id)
			}
		}
	}
	for _, q := range d.asked {
		if err := d.client.NC.PublishRequest(q.subject, q.reply, nil); err != nil {
			d.logger.Warn("NATS services cannot be asked for; it will be retried", "reason", err)
		}
	}
	return gone
}

// allAnswered reports whether every named service has answered, or is known not to be there.
// Of all services, nobody knows how many there are.
func (d *discovery) allAnswered() bool {
	return !slices.ContainsFunc(d.asked, func(q *question) bool { return !q.answered })
}

// hear reads an answer, and reports whether it changed what is known.
func (d *discovery) hear(msg *nats.Msg) (changed bool) {
	at := slices.IndexFunc(d.asked, func(q *question) bool { return q.reply == msg.Subject })
	if at < 0 {
		return false
	}
	q := d.asked[at]
	q.answered = true
	if len(msg.Data) == 0 {
		return false // nobody is there
	}
	if len(msg.Data) > maxAnswer {
		d.warn(fmt.Errorf("an answer of a NATS service to %s is larger than %d KiB and is ignored", q.subject, maxAnswer>>10))
		return false
	}
	i, err := parseInfo(msg.Data)
	switch {
	case err != nil:
		d.warn(fmt.Errorf("an answer of a NATS service cannot be read: %w", err))
		return false
	case q.Name == "" && d.named(i.Name):
		return false // it has its own question
	case q.Name != "" && i.Name != q.Name:
		d.warn(fmt.Errorf("the NATS service %q answered for %q and is ignored", truncate.Prefix(i.Name, maxNamed), q.Name))
		return false
	}
	s := d.services[i.Name]
	if s == nil {
		s = &service{instances: map[string]*instance{}, tools: map[string]*offer{}}
	}
	known := s.instances[i.ID]
	answer := sha256.Sum256(msg.Data)
	if known != nil && known.answer == answer {
		known.missed = 0
		return false
	}
	offers := i.offers(q.Pool)
	if known == nil {
		if len(offers) == 0 {
			return false // it has no tools
		}
		if d.instances >= maxInstances {
			d.warn(fmt.Errorf("more than %d instances of NATS services have tools; the others are ignored", maxInstances))
			return false
		}
		d.instances++
	}
	d.services[i.Name] = s
	s.instances[i.ID] = &instance{answer: answer, offers: offers, subjects: i.subjects()}
	return true
}

func (d *discovery) named(name string) bool {
	return slices.ContainsFunc(d.asked, func(q *question) bool { return q.Name == name })
}

// warn logs a warning once.
func (d *discovery) warn(err error) {
	if d.said[err.Error()] || len(d.said) >= maxSaid {
		return
	}
	d.said[err.Error()] = true
	d.logger.Warn("NATS services", "reason", err)
}

// offer offers the tools of all living instances.
func (d *discovery) offer() {
	holders := map[string][]string{}
	taken := d.claims()
	for _, name := range slices.Sorted(maps.Keys(d.services)) {
		for _, t := range d.toolsOf(name) {
			if subject := d.services[name].tools[t].subject; !d.owns(name, subject, taken.by(subject)) {
				d.warn(fmt.Errorf("service %s: the tool %q is left out: another service has an endpoint on its subject %q, and would get its calls", name, t, truncate.Prefix(subject, maxNamed)))
				continue
			}
			holders[t] = append(holders[t], name)
		}
	}
	var tools []tool.Tool
	for _, name := range slices.Sorted(maps.Keys(holders)) {
		services := holders[name]
		owner := d.owners[name]
		switch {
		case len(services) == 1:
			owner = services[0]
			d.owners[name] = owner
		case !slices.Contains(services, owner):
			owner = ""
		}
		of := d.services[cmp.Or(owner, services[0])].tools[name]
		t := &remote{source: d.source, def: of.def, subject: of.subject, unclear: owner == ""}
		if t.def.Services = services; len(services) > 1 {
			d.warn(fmt.Errorf("the tool %q is in the services %s: no run starts with it (ambiguous_tool); rename it in all but one of them", name, strings.Join(services, ", ")))
		}
		tools = append(tools, t)
	}
	maps.DeleteFunc(d.owners, func(name string, _ string) bool { return holders[name] == nil && len(d.owners) > maxTools })
	d.put(tools)
}

// toolsOf returns the names of a service's tools, after choosing what each of them is.
func (d *discovery) toolsOf(name string) []string {
	s := d.services[name]
	offers := map[string][]offer{}
	for _, id := range slices.Sorted(maps.Keys(s.instances)) {
		for _, o := range s.instances[id].offers {
			if o.wrong != nil {
				d.warn(fmt.Errorf("service %s %s: %w", name, truncate.Prefix(o.version, maxNamed), o.wrong))
				continue
			}
			offers[o.def.Name] = append(offers[o.def.Name], o)
		}
	}
	var names []string
	for _, t := range slices.Sorted(maps.Keys(offers)) {
		chosen, dispute, wrong := choose(offers[t], s.tools[t])
		if err := cmp.Or(wrong, dispute); err != nil {
			d.warn(fmt.Errorf("service %s: %w", name, err))
		}
		if chosen != nil {
			s.tools[t] = chosen
			names = append(names, t)
		}
	}
	// What is gone is remembered, so that it comes back as it was.
	maps.DeleteFunc(s.tools, func(t string, _ *offer) bool { return offers[t] == nil && len(s.tools) > maxTools })
	if len(s.instances) == 0 && len(d.services) > maxTools {
		delete(d.services, name)
	}
	return names
}
