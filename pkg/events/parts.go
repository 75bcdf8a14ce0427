package events

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/media"
)

// The types of a [Part].
const (
	PartText  = "text"
	PartImage = "image"
	PartFile  = "file"
)

// maxPartName bounds a part's name, in bytes.
const maxPartName = 4096

// Part is one part of a message that is more than text: words, an image or a file. An image
// or a file has a media type, and exactly one of Data, which are its bytes, URL, from which
// the provider loads it, and Ref, where the object store has it. Name is a file's name.
type Part struct {
	Type      string `json:"type"`
	Text      string `json:"text,omitempty"`
	MediaType string `json:"media_type,omitempty"`
	Data      []byte `json:"data,omitempty"`
	URL       string `json:"url,omitempty"`
	Ref       *Ref   `json:"ref,omitempty"`
	Name      string `json:"name,omitempty"`
}

// Check returns what is wrong with a part, nil if nothing is.
func (p *Part) Check() error {
	switch p.Type {
	case PartText:
		if p.MediaType != "" || p.Data != nil || p.URL != "" || p.Ref != nil || p.Name != "" {
			return errors.New("a text has only the key text")
		}
		if p.Text == "" {
			return errors.New("text: is missing or empty")
		}
		return nil
	case PartImage, PartFile:
		return p.checkMedia()
	case "":
		return errors.New("type: is missing; it is text, image or file")
	}
	return fmt.Errorf("type: %.100q is not known; it is text, image or file", p.Type)
}

func (p *Part) checkMedia() error {
	given := 0
	for _, is := range []bool{p.Data != nil, p.URL != "", p.Ref != nil} {
		if is {
			given++
		}
	}
	switch {
	case p.Text != "":
		return fmt.Errorf("text: belongs to a part of type text, not %s", p.Type)
	case p.MediaType == "":
		return errors.New("media_type: is missing; it is, for example, image/png")
	case !media.Valid(p.MediaType):
		return fmt.Errorf("media_type: %.100q is not a media type such as image/png, in lower case and without parameters", p.MediaType)
	case p.Type == PartImage && !media.IsImage(p.MediaType):
		return fmt.Errorf("media_type: %s is no type of image that models take; use %s, or the type file", p.MediaType, media.ImageTypes())
	case given != 1:
		return fmt.Errorf("has %d of data, url and ref; give exactly one", given)
	case p.Data != nil && len(p.Data) == 0:
		return errors.New("data: is empty")
	case len(p.Name) > maxPartName || strings.ContainsFunc(p.Name, func(r rune) bool { return r < ' ' }) || !utf8.ValidString(p.Name):
		return fmt.Errorf("name: must be one line of at most %d bytes", maxPartName)
	case p.URL != "":
		return media.CheckURL(p.URL)
	case p.Ref != nil:
		return p.Ref.check()
	}
	return nil
}

// check returns what is wrong with the form of a reference.
func (r *Ref) check() error {
	if r.Bucket == "" || r.Size <= 0 || len(r.SHA256) != len(Hash(nil)) || r.Key != r.SHA256 {
		return errors.New("ref: needs bucket, key, size in bytes, and sha256, which is also the key, as an event has them")
	}
	return nil
}

// words names an image or a file as people see it: [image image/png 12 kB]. Those of a text
// are the text.
func (p *Part) words() string {
	if p.Type == PartText {
		return p.Text
	}
	size := len(p.Data)
	if p.Ref != nil {
		size = p.Ref.Size
	}
	return "[" + media.Words(p.Type, p.Name, p.MediaType, p.URL, size) + "]"
}

// TextOf returns the text of a message's parts, joined by line breaks. Parts without any text
// are named instead.
func TextOf(parts []Part) string {
	var texts, words []string
	for i := range parts {
		if parts[i].Type == PartText {
			texts = append(texts, parts[i].Text)
		}
		words = append(words, parts[i].words())
	}
	if len(texts) == 0 {
		texts = words
	}
	return strings.Join(texts, "\n")
}

// Shown returns a message as people see it: its text, and its images and files in words.
func Shown(content string, parts []Part) string {
	if len(parts) == 0 {
		return content
	}
	words := make([]string, len(parts))
	for i := range parts {
		words[i] = parts[i].words()
	}
	return strings.Join(words, "\n")
}

// Attachment is something that a tool returned in addition to text, such as an image. MediaType is
// empty in logs of builds that did not record it.
type Attachment struct {
	Ref
	MediaType string `json:"media_type,omitempty"`
}

// Part returns the attachment as a part of a message; false for one that models do not take.
func (a *Attachment) Part() (Part, bool) {
	p := Part{Type: PartImage, MediaType: a.MediaType, Ref: &a.Ref}
	if media.IsDocument(a.MediaType) {
		p.Type = PartFile
	}
	return p, a.Size > 0 && (p.Type == PartFile || media.IsImage(a.MediaType))
}

// RefsOf returns what a payload refers to in the object store.
func RefsOf(p Payload) []Ref {
	var refs []Ref
	if f := FactsOf(p); f != nil && f.ReasoningRef != nil {
		refs = append(refs, *f.ReasoningRef)
	}
	switch p := p.(type) {
	case *Start:
		return partRefs(p.Parts)
	case *UserMessage:
		return partRefs(p.Parts)
	case *ToolCallResult:
		return p.ToolOutcome.refs()
	case *ToolSuccess:
		return p.Outcome.refs()
	case *ToolFailure:
		return p.Outcome.refs()
	}
	return refs
}

func partRefs(parts []Part) (refs []Ref) {
	for i := range parts {
		if parts[i].Ref != nil {
			refs = append(refs, *parts[i].Ref)
		}
	}
	return refs
}

func (o *ToolOutcome) refs() (refs []Ref) {
	if o == nil {
		return nil
	}
	if o.Ref != nil {
		refs = append(refs, *o.Ref)
	}
	for i := range o.Attachments {
		refs = append(refs, o.Attachments[i].Ref)
	}
	return refs
}
