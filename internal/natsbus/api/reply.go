package api

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// AckPrefix begins the reply subjects of deliveries.
const AckPrefix = "$JS.ACK."

// Delivered is what a delivery's reply subject says of it.
type Delivered struct {
	Attempt      int
	Seq, Pending uint64
	// Number counts the consumer's deliveries, from 1.
	Number uint64
	Stored time.Time
}

// ParseReply reads a delivery's reply subject. There are two forms:
// $JS.ACK.<stream>.<consumer>.<delivered>.<seq>.<consumer seq>.<time>.<pending>
// and the same with a domain and an account in front of the stream, and possibly
// one token more at the end. Unlike the library's Metadata, it allocates nothing.
func ParseReply(reply string) (Delivered, error) {
	skip, tokens := 4, strings.Count(reply, ".")+1
	if tokens >= 11 {
		skip = 6
	}
	if !strings.HasPrefix(reply, AckPrefix) || tokens < skip+5 {
		return Delivered{}, fmt.Errorf("reply subject %q is not that of a delivery", reply)
	}
	rest := reply
	for range skip {
		_, rest, _ = strings.Cut(rest, ".")
	}
	var n [5]int64
	for i := range n {
		var token string
		var err error
		token, rest, _ = strings.Cut(rest, ".")
		if n[i], err = strconv.ParseInt(token, 10, 64); err != nil {
			return Delivered{}, fmt.Errorf("reply subject %q: %w", reply, err)
		}
	}
	return Delivered{Attempt: int(n[0]), Seq: uint64(n[1]), Stored: time.Unix(0, n[3]).UTC(), Pending: uint64(n[4]), Number: uint64(n[2])}, nil
}
