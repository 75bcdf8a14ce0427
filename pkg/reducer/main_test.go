package reducer_test

import (
	"flag"
	"os"
	"strconv"
	"testing"

	_ "pgregory.net/rapid" // has the flag

	"github.com/moorebus/moorebus/internal/racing"
)

func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", strconv.Itoa(racing.Size(100, 25))); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
