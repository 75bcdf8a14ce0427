package permissions

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nats-io/nkeys"
)

// KeyFile returns the path of a user's seed, for NATS_NKEY.
func KeyFile(dir, user string) string { return filepath.Join(dir, user+".nk") }

// Keys reads the seed files in a directory and returns the public keys of the operator and all users
// of a layout, by name. It creates missing files, readable by their owner only, and never changes
// existing ones.
func Keys(dir string, l Layout) (map[string]string, error) {
	users, err := Users(l)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of keys: %w", err)
	}
	keys := map[string]string{}
	for _, name := range append([]string{Operator}, names(users)...) {
		if keys[name], err = publicKey(KeyFile(dir, name)); err != nil {
			return nil, fmt.Errorf("key of %s: %w", name, err)
		}
	}
	return keys, nil
}

func names(users []User) []string {
	all := make([]string, len(users))
	for i, u := range users {
		all[i] = u.Name
	}
	return all
}

func publicKey(file string) (string, error) {
	seed, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return makeKey(file)
	}
	if err != nil {
		return "", err
	}
	pair, err := nkeys.ParseDecoratedNKey(seed)
	if err != nil {
		return "", fmt.Errorf("%s does not contain the seed of an nkey: %w", file, err)
	}
	defer pair.Wipe()
	public, err := pair.PublicKey()
	if err == nil && !nkeys.IsValidPublicUserKey(public) {
		err = fmt.Errorf("%s contains a key that is not a user key", file)
	}
	return public, err
}

func makeKey(file string) (string, error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return "", err
	}
	defer pair.Wipe()
	seed, err := pair.Seed()
	if err != nil {
		return "", err
	}
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	_, err = out.Write(append(seed, '\n'))
	if err := errors.Join(err, out.Close()); err != nil {
		return "", err
	}
	return pair.PublicKey()
}
