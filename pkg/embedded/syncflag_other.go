//go:build !linux

package embedded

import (
	"errors"
	"os"
)

var errNotLinux = errors.New("this needs Linux")

func checkFileSystem(string) error    { return errNotLinux }
func isSynced(*os.File) (bool, error) { return false, errNotLinux }
func setSynced(*os.File, bool) error  { return errNotLinux }
func datasync(file *os.File) error    { return file.Sync() }
func forget(*os.File) error           { return nil }
