package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// globalAccount has the streams of a server without accounts.
const globalAccount = "$G"

// identity is who the process's own connections are.
type identity struct {
	// connect presents it; nil: nobody asks.
	connect nats.Option
	// account has the streams.
	account string
}

// identity returns who connects, if the directory's streams are in that account.
func (o *Options) identity(settings *server.Options) (identity, error) {
	who := identity{account: globalAccount}
	if o.Token != "" {
		who.connect = nats.Token(o.Token)
	}
	if o.Config != "" {
		var err error
		if who, err = byKey(o.NKey, settings.Nkeys); err != nil {
			return who, fmt.Errorf("embedded server: %w", err)
		}
	}
	return who, checkAccount(filepath.Join(settings.StoreDir, server.JetStreamStoreDir), who.account)
}

// byKey returns the user of a seed.
func byKey(path string, users []*server.NkeyUser) (identity, error) {
	connect, err := nats.NkeyOptionFromSeed(path)
	if err != nil {
		return identity{}, err
	}
	seed, err := os.ReadFile(path)
	if err != nil {
		return identity{}, err
	}
	pair, err := nkeys.ParseDecoratedNKey(seed)
	if err != nil {
		return identity{}, fmt.Errorf("%s: %w", path, err)
	}
	defer pair.Wipe()
	public, err := pair.PublicKey()
	if err != nil {
		return identity{}, err
	}
	for _, u := range users {
		if u.Nkey == public && u.Account != nil {
			return identity{connect, u.Account.Name}, nil
		}
	}
	return identity{}, fmt.Errorf("no user of an account has the key in %s", path)
}

// checkAccount returns an error if a directory has streams of another account: they would not be
// seen, and others made in their place.
func checkAccount(dir, account string) error {
	found, err := filepath.Glob(filepath.Join(dir, "*", "streams", "*"))
	if err != nil {
		return err
	}
	for _, stream := range found {
		other := filepath.Dir(filepath.Dir(stream))
		if filepath.Base(other) == account {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, account)); errors.Is(err, fs.ErrNotExist) {
			if account == globalAccount {
				return fmt.Errorf("embedded server: the streams in %s are those of a server with users: start it with its users again", other)
			}
			return fmt.Errorf("embedded server: the streams in %s are those of a server without users: rename the directory to %s to give them to this one", other, account)
		}
	}
	return nil
}
