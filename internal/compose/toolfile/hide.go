package toolfile

import (
	"os"
	"path/filepath"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/pkg/tool/exectool"
)

// keyFiles are the environment variables that name a file with a key of the bus.
var keyFiles = []string{"NATS_NKEY", "NATS_CREDS", "NATS_KEY"}

// HideFiles keeps from the commands of tools these files, which say what tools may do, the data
// directory, the operator's token, the keys of the bus, and .env files.
func HideFiles(files ...string) {
	exectool.Hide(files...)
	exectool.Hide(os.Getenv("CREDENTIALS_DIRECTORY")) // systemd's
	if at, err := cli.FindPlace("", "", os.Getenv); err == nil && !at.Remote {
		exectool.Hide(at.Dir)
	}
	if dir, err := cli.DataDir(os.Getenv); err == nil {
		exectool.Hide(dir)
	}
	if file, err := cli.OperatorFile(os.Getenv); err == nil {
		exectool.Hide(file)
	}
	patterns := []string{".env*"}
	for _, name := range keyFiles {
		if file := os.Getenv(name); file != "" {
			exectool.Hide(file)
			patterns = append(patterns, filepath.Join(filepath.Dir(file), "*.nk"), filepath.Join(filepath.Dir(file), "*.creds"), filepath.Join(filepath.Dir(file), "*.key"))
		}
	}
	for _, pattern := range patterns {
		found, _ := filepath.Glob(pattern) // the pattern is valid, but for a folder with a strange name
		exectool.Hide(found...)
	}
}
