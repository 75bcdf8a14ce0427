package servicetool

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/internal/truncate"
	"github.com/moorebus/moorebus/pkg/tool"
)

// prefix begins the keys of the metadata that are Moorebus's.
const prefix = "moorebus."

// Bounds of what services may say.
const (
	maxDescription = 8 << 10
	maxSchema      = 64 << 10
	maxEndpoints   = 1000
)

// info is a service's answer to $SRV.INFO, as far as it is used.
type info struct {
	Name      string         `json:"name"`
	ID        string         `json:"id"`
	Version   string         `json:"version"`
	Type      string         `json:"type"`
	Endpoints []endpointInfo `json:"endpoints"`
}

type endpointInfo struct {
	Name    string `json:"name"`
	Subject string `json:"subject"`
	// QueueGroup is nil in the answers of older libraries, which have one always.
	QueueGroup *string           `json:"queue_group"`
	Metadata   map[string]string `json:"metadata"`
}

const infoType = "io.nats.micro.v1.info_response"

// offer is an endpoint that is a tool, or says that it is one.
type offer struct {
	version string
	// subject and group are where the endpoint takes its requests.
	subject, group string
	def            tool.Definition
	// wrong is why the endpoint is no tool.
	wrong error
}

// parseInfo reads an answer.
func parseInfo(body []byte) (info, error) {
	var i info
	if err := json.Unmarshal(body, &i); err != nil {
		return i, err
	}
	if i.Type != infoType || i.Name == "" || i.ID == "" {
		return i, fmt.Errorf("it is not an answer of type %s with a name and an id", infoType)
	}
	if len(i.Endpoints) > maxEndpoints {
		return i, fmt.Errorf("it has more than %d endpoints", maxEndpoints)
	}
	return i, nil
}

// offers returns the endpoints of an instance that are tools. pool goes before that of the
// metadata.
func (i *info) offers(pool string) []offer {
	var all []offer
	for _, e := range i.Endpoints {
		if _, is := e.Metadata[prefix+"tool"]; !is {
			continue
		}
		o := offer{version: i.Version, subject: e.Subject, group: "q"}
		if e.QueueGroup != nil {
			o.group = *e.QueueGroup
		}
		o.def, o.wrong = definition(e.Metadata, pool)
		o.def.Services = []string{i.Name}
		if o.wrong = errors.Join(o.wrong, checkSubject(e.Subject)); o.group == "" {
			o.wrong = errors.Join(o.wrong, errors.New("the endpoint has no queue group: every instance would run each call"))
		}
		if o.wrong != nil {
			o.wrong = fmt.Errorf("endpoint %q: %w", truncate.Prefix(e.Name, maxNamed), o.wrong)
		}
		all = append(all, o)
	}
	return all
}

// subjects are those of all endpoints of an instance.
func (i *info) subjects() []string {
	all := make([]string, len(i.Endpoints))
	for k, e := range i.Endpoints {
		all[k] = e.Subject
	}
	return all
}

// maxNamed bounds names in warnings.
const maxNamed = 100

// definition reads the metadata of an endpoint. The error names everything that is wrong.
func definition(metadata map[string]string, pool string) (tool.Definition, error) {
	var errs []error
	def := tool.Definition{}
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		own, ours := strings.CutPrefix(key, prefix)
		if !ours {
			continue
		}
		value := metadata[key]
		var err error
		switch own {
		case "tool":
			def.Name = value
		case "description":
			def.Description = truncate.Prefix(value, maxDescription)
		case "schema":
			def.Schema, err = readSchema(value)
		case "effect":
			def.Effect = tool.Effect(value)
		case "risk":
			def.Risk = tool.Risk(value)
		case "pool":
			def.Pool = value
		case "timeout":
			if def.Timeout, err = time.ParseDuration(value); err == nil && def.Timeout <= 0 {
				err = errors.New("it must be more than 0")
			}
		case "retries":
			def.Retries, err = strconv.Atoi(value)
		default:
			err = errors.New("there is no such key")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", truncate.Prefix(key, maxNamed), err))
		}
	}
	if pool != "" {
		def.Pool = pool
	}
	def = def.WithDefaults()
	return def, errors.Join(append(errs, def.Validate(), checkPool(def.Pool))...)
}

func readSchema(text string) (json.RawMessage, error) {
	if len(text) > maxSchema {
		return nil, fmt.Errorf("it has %d bytes, more than %d", len(text), maxSchema)
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &object); err != nil || object == nil {
		return nil, errors.New("it is not a JSON object")
	}
	return json.RawMessage(text), schema.Check(json.RawMessage(text))
}

var poolPattern = regexp.MustCompile("^[a-z0-9][a-z0-9_-]{0,62}$")

// checkPool refuses pools that no actor may serve.
func checkPool(pool string) error {
	if slices.Contains([]string{"agents", "client"}, pool) || !poolPattern.MatchString(pool) {
		return fmt.Errorf("pool %q is not one of actors; use [a-z0-9][a-z0-9_-]{0,62}, but not agents and client", truncate.Prefix(pool, maxNamed))
	}
	return nil
}

// reserved begin the subjects of Moorebus and of the server. A service that named one of
// them as its own would have the actor write there.
var reserved = []string{"moore", "moore_flush", "feed", "chunk", "catchup", "loan", "question", "timers"}

// Reserved reports whether a subject, which may have wildcards, is one of Moorebus or of the
// server, so that no service may have it.
func Reserved(subject string) bool {
	first, _, _ := strings.Cut(subject, ".")
	return first == "" || first == "*" || first == ">" || first[0] == '$' || first[0] == '_' || slices.Contains(reserved, first)
}

func checkSubject(subject string) error {
	tokens := strings.Split(subject, ".")
	if len(subject) > 255 || slices.Contains(tokens, "") || slices.Contains(tokens, "*") || slices.Contains(tokens, ">") || strings.ContainsAny(subject, " \t\r\n\x00") {
		return fmt.Errorf("its subject %q is not one on which a request can be sent", truncate.Prefix(subject, maxNamed))
	}
	if Reserved(subject) {
		return fmt.Errorf("its subject %q belongs to Moorebus or to the server", truncate.Prefix(subject, maxNamed))
	}
	return nil
}

// choose returns what a tool is, given the offers of a service's living instances and what
// it was before, or why it is none. dispute is what instances of the version say otherwise.
func choose(offers []offer, before *offer) (chosen *offer, dispute, wrong error) {
	best := offers[0].version
	for _, o := range offers[1:] {
		if newer(o.version, best) {
			best = o.version
		}
	}
	all := offers
	offers = slices.DeleteFunc(slices.Clone(all), func(o offer) bool { return o.version != best })
	c := offers[0]
	if before != nil && before.version == best {
		c = *before
		if !slices.ContainsFunc(offers, func(o offer) bool { return o.subject == c.subject }) {
			c.subject = offers[0].subject
		}
	}
	groups := map[string]bool{}
	for _, o := range all {
		if o.subject == c.subject {
			groups[o.group] = true
		}
	}
	if len(groups) > 1 {
		return nil, nil, fmt.Errorf("the tool %q: its instances have the queue groups %v: each group would run every call", c.def.Name, slices.Sorted(maps.Keys(groups)))
	}
	if slices.ContainsFunc(offers, func(o offer) bool { return !reflect.DeepEqual(o.def, c.def) }) {
		dispute = fmt.Errorf("the tool %q: instances of version %s describe it differently; it stays as it was first seen. Give the service a new version", c.def.Name, truncate.Prefix(best, maxNamed))
	}
	return &c, dispute, nil
}

// newer reports whether a version is higher than another one. One that is not a semantic
// version is lower than all that are.
func newer(a, b string) bool {
	if c := semver.Compare("v"+a, "v"+b); c != 0 {
		return c > 0
	}
	return a > b
}
