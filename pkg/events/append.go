package events

import (
	"bytes"
	"encoding/json"
	"math"
	"math/bits"
	"strconv"
	"time"
	"unicode/utf8"
)

// The append functions write what package json would write without the escapes
// that only HTML needs, byte for byte.

// appendString appends s as a JSON string. What is not UTF-8 is replaced.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for {
		end := asciiEnd(s)
		b = append(b, s[:end]...)
		if s = s[end:]; s == "" {
			return append(b, '"')
		}
		b, s = appendSpecial(b, s)
	}
}

// asciiEnd returns where s has the first byte that is not ASCII or does not stand
// for itself within a JSON string.
func asciiEnd(s string) int {
	i := 0
	for ; i+8 <= len(s); i += 8 {
		w := s[i : i+8]
		x := uint64(w[0]) | uint64(w[1])<<8 | uint64(w[2])<<16 | uint64(w[3])<<24 |
			uint64(w[4])<<32 | uint64(w[5])<<40 | uint64(w[6])<<48 | uint64(w[7])<<56
		if special := specials(x) | x&topBits; special != 0 {
			return i + bits.TrailingZeros64(special)/8
		}
	}
	for ; i < len(s); i++ {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			return i
		}
	}
	return i
}

// appendSpecial appends what s begins with, which is not ASCII or has to be escaped,
// and returns the rest.
func appendSpecial(b []byte, s string) ([]byte, string) {
	if s[0] < utf8.RuneSelf {
		return appendEscape(b, s[0]), s[1:]
	}
	i := 0
	for i < len(s) && s[i] >= utf8.RuneSelf {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return append(append(b, s[:i]...), `\ufffd`...), s[i+1:]
		case r == '\u2028', r == '\u2029':
			b = append(append(b, s[:i]...), `\u202`...)
			return append(b, hexDigits[r&0xf]), s[i+size:]
		}
		i += size
	}
	return append(b, s[:i]...), s[i:]
}

const hexDigits = "0123456789abcdef"

func appendEscape(b []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(b, '\\', c)
	case '\b':
		return append(b, '\\', 'b')
	case '\f':
		return append(b, '\\', 'f')
	case '\n':
		return append(b, '\\', 'n')
	case '\r':
		return append(b, '\\', 'r')
	case '\t':
		return append(b, '\\', 't')
	}
	return append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
}

// appendOptional appends a member whose key is written already, unless it is
// empty.
func appendOptional(b []byte, key, s string) []byte {
	if s == "" {
		return b
	}
	return appendString(append(b, key...), s)
}

// appendFloat appends a number. The error is package json's, for a number that
// JSON does not have.
func appendFloat(b []byte, f float64) ([]byte, error) {
	if f >= 1 && f < 1e6 && f == math.Trunc(f) {
		return strconv.AppendInt(b, int64(f), 10), nil
	}
	if size := math.Abs(f); size == 0 || size >= 1e-6 && size < 1e21 {
		return strconv.AppendFloat(b, f, 'f', -1, 64), nil
	}
	number, err := json.Marshal(f)
	return append(b, number...), err
}

// appendRaw appends JSON text without its white space.
func appendRaw(b []byte, raw json.RawMessage) ([]byte, error) {
	buf := bytes.NewBuffer(b)
	if err := json.Compact(buf, raw); err != nil {
		return b, err
	}
	return buf.Bytes(), nil
}

// appendTime appends a time, which must be in UTC, in [TimeFormat].
func appendTime(b []byte, t time.Time) []byte {
	year, month, day := t.Date()
	if year < 0 || year > 9999 {
		return t.AppendFormat(b, TimeFormat)
	}
	hour, minute, second := t.Clock()
	b = append(appendDigits(b, year, 4), '-')
	b = append(appendDigits(b, int(month), 2), '-')
	b = append(appendDigits(b, day, 2), 'T')
	b = append(appendDigits(b, hour, 2), ':')
	b = append(appendDigits(b, minute, 2), ':')
	b = append(appendDigits(b, second, 2), '.')
	return append(appendDigits(b, t.Nanosecond(), 9), 'Z')
}

// appendDigits appends a number with so many digits.
func appendDigits(b []byte, n, digits int) []byte {
	var text [9]byte
	for i := digits - 1; i >= 0; i-- {
		text[i] = byte('0' + n%10)
		n /= 10
	}
	return append(b, text[:digits]...)
}
