// Package media names the images and files of messages and results: in words for people
// and models, and by the media types that may be used.
package media

import (
	"errors"
	"fmt"
	"mime"
	"net/url"
	"slices"
	"strings"
)

// MaxBytes bounds the images and files of one request to a model, and so each of them. In
// base64 it is less than what the providers take.
const MaxBytes = 20 << 20

// images are the types of images that models take.
var images = []string{"image/png", "image/jpeg", "image/gif", "image/webp"}

// ImageTypes lists the media types of images that models take, for messages.
func ImageTypes() string { return strings.Join(images, ", ") }

// IsImage reports whether models take images of that media type.
func IsImage(mediaType string) bool { return slices.Contains(images, mediaType) }

// IsDocument reports whether a file of that media type is one that models read.
func IsDocument(mediaType string) bool { return mediaType == "application/pdf" }

// IsText reports whether a file of that media type is text that any model can read.
func IsText(mediaType string) bool {
	return strings.HasPrefix(mediaType, "text/") || slices.ContainsFunc([]string{"json", "xml", "yaml"}, func(form string) bool {
		return mediaType == "application/"+form || strings.HasSuffix(mediaType, "+"+form)
	})
}

// Valid reports whether a media type has the form type/subtype, in lower case and without
// parameters.
func Valid(mediaType string) bool {
	parsed, parameters, err := mime.ParseMediaType(mediaType)
	return err == nil && parsed == mediaType && len(parameters) == 0 && strings.Count(mediaType, "/") == 1
}

// maxURL bounds the address of an image or a file, in bytes.
const maxURL = 4096

// CheckURL returns what is wrong with the address of an image or a file, which providers load.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case len(text) > maxURL:
		return fmt.Errorf("url: is longer than %d bytes", maxURL)
	case strings.HasPrefix(strings.ToLower(text), "data:"):
		return errors.New("url: is a data URL; give its base64 as data")
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return errors.New("url: must be an absolute http or https URL")
	}
	return nil
}

// Words names an image or a file, as in "image image/png 12 kB". kind is image or file. name
// and url may be empty, and size, in bytes, may be 0 for an unknown one.
func Words(kind, name, mediaType, url string, size int) string {
	words := []string{kind}
	for _, word := range []string{name, mediaType, url} {
		if word != "" {
			words = append(words, word)
		}
	}
	if size > 0 {
		words = append(words, Size(size))
	}
	return strings.Join(words, " ")
}

// Size is a number of bytes for people, rounded up: 800 B, 12 kB, 3.4 MB.
func Size(bytes int) string {
	switch {
	case bytes < 1000:
		return fmt.Sprintf("%d B", bytes)
	case bytes < 1_000_000:
		return fmt.Sprintf("%d kB", (bytes+999)/1000)
	}
	return fmt.Sprintf("%.1f MB", float64(bytes)/1e6)
}
