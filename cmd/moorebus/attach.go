package main

import (
	"fmt"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/media"
	"github.com/moorebus/moorebus/pkg/events"
)

// addAttachFlag adds the flag that names images and files of a message.
func addAttachFlag(cmd *cobra.Command) *[]string {
	return cmd.Flags().StringArray("attach", nil, "add this image or other `file` to the message (repeatable)")
}

// attached returns a message with a text and these files as parts; nil without files. The
// text may be empty.
func attached(text string, files []string) ([]events.Part, error) {
	if len(files) == 0 {
		return nil, nil
	}
	var parts []events.Part
	if strings.TrimSpace(text) != "" {
		parts = append(parts, events.Part{Type: events.PartText, Text: text})
	}
	for _, path := range files {
		part, err := fileOf(path)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// fileOf reads a file. Its content says whether it is an image that models take; the type of
// any other file follows from its name, or else from its content.
func fileOf(path string) (events.Part, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return events.Part{}, cli.Usage("--attach: %w", err)
	case info.Size() > media.MaxBytes:
		return events.Part{}, cli.Usage("--attach: %s has %s; a message may have at most %s", path, media.Size(int(info.Size())), media.Size(media.MaxBytes))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return events.Part{}, cli.Usage("--attach: %w", err)
	}
	part := events.Part{Type: events.PartImage, MediaType: http.DetectContentType(data), Data: data}
	if !media.IsImage(part.MediaType) {
		part.Type, part.Name = events.PartFile, filepath.Base(path)
		if named := mime.TypeByExtension(filepath.Ext(path)); named != "" {
			part.MediaType = named
		}
		part.MediaType, _, _ = strings.Cut(part.MediaType, ";")
	}
	if err := part.Check(); err != nil {
		return events.Part{}, cli.Usage("--attach: %w", fmt.Errorf("%s: %w", path, err))
	}
	return part, nil
}
