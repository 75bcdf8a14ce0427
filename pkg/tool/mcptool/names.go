package mcptool

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxName is the longest name of a tool.
const maxName = 64

// toolName is what a server's tool is announced as: `server.tool`, with what may
// not stand in a name replaced, and a long one cut and marked with its digest.
func toolName(server, tool string) string {
	name := Prefix(server) + strings.Map(nameRune, tool)
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256([]byte(server + "." + tool))
	mark := "_" + hex.EncodeToString(sum[:4])
	return name[:maxName-len(mark)] + mark
}

// Prefix is what the names of a server's tools begin with, as far as it fits.
func Prefix(server string) string { return strings.Map(nameRune, server) + "." }

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
