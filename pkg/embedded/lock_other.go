//go:build !unix || aix || solaris || illumos

package embedded

import (
	"errors"
	"os"
)

// lockFile refuses: without a lock that ends with its process, two servers could
// destroy each other's data.
func lockFile(*os.File, bool) error {
	return errors.New("this system has no file lock that the embedded server can rely on: run nats-server by itself and set NATS_URL")
}
