package mcptool

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxName is the longest name of a tool, markSize how much of it the mark takes of
// one that is cut.
const (
	maxName  = 64
	markSize = 1 + 8
)

// toolName is what a server's tool is announced as: `server.tool`, with what may
// not stand in a name replaced, and a long one cut and marked with its digest.
func toolName(server, tool string) string {
	name := strings.Map(nameRune, server+"."+tool)
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256([]byte(server + "." + tool))
	mark := "_" + hex.EncodeToString(sum[:4])
	return name[:maxName-markSize] + mark
}

// Prefix is what the names of a server's tools begin with. Of a long one it is the
// part that is in a name which was cut.
func Prefix(server string) string {
	whole := strings.Map(nameRune, server+".")
	return whole[:min(len(whole), maxName-markSize)]
}

func nameRune(r rune) rune {
	if named(r) || r == '_' || r == '-' || r == '.' {
		return r
	}
	return '_'
}

// named reports whether r is an ASCII letter or digit.
func named(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}
