package webhooks

import (
	"net"
	"net/netip"
	"net/url"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/feature/webhooks/row"
)

// Feature returns the feature.
func Feature() feature.Feature {
	return feature.Feature{
		Row: row.Row(), New: Made(Settings{}), Client: Made(Settings{Allowed: Loopback(), Client: true}), Flags: addFlags, Commands: []feature.Command{command},
	}
}

// Made returns what makes webhooks with settings.
func Made(s Settings) feature.New {
	return func(c *control.Controller) feature.Part {
		h := New(c, s)
		return feature.Part{Rows: h.rows(), Run: h.Run}
	}
}

// flags are --console-url, --webhook-allow and --webhook-retries.
type flags struct {
	flags      *pflag.FlagSet
	consoleURL string
	allowed    []string
	retries    []time.Duration
}

func addFlags(all *pflag.FlagSet) func(at *feature.Place) (feature.New, error) {
	f := &flags{flags: all}
	f.add()
	return func(at *feature.Place) (feature.New, error) {
		s, err := f.settings(at.Listener)
		return Made(s), err
	}
}

func (f *flags) add() {
	f.flags.StringVar(&f.consoleURL, "console-url", os.Getenv("MOOREBUS_CONSOLE_URL"), "`URL` under which people find the console, for links in webhooks (MOOREBUS_CONSOLE_URL)")
	f.flags.StringSliceVar(&f.allowed, "webhook-allow", nil, "`networks` that webhooks may reach besides public addresses, such as 10.1.0.0/16 (default: loopback, if HTTP is served on loopback or not at all)")
	f.flags.DurationSliceVar(&f.retries, "webhook-retries", Retries(), "`pauses` after failed attempts to deliver to a webhook; after one attempt more, the notice is given up")
}

// settings returns the settings. listener serves HTTP; nil: nothing does.
func (f *flags) settings(listener net.Listener) (Settings, error) {
	s := Settings{ConsoleURL: f.consoleURL, Retries: f.retries}
	for _, text := range f.allowed {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return s, cli.Usage("--webhook-allow: %q is not a network such as 10.1.0.0/16", text)
		}
		s.Allowed = append(s.Allowed, network.Masked())
	}
	if u, err := url.Parse(f.consoleURL); f.consoleURL != "" && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "") {
		return s, cli.Usage("--console-url: %q is not a URL of the form https://host", f.consoleURL)
	}
	for _, pause := range f.retries {
		if pause <= 0 {
			return s, cli.Usage("--webhook-retries: must be positive, and one is %s", pause)
		}
	}
	if f.flags.Changed("webhook-allow") {
		return s, nil
	}
	local := listener == nil
	if !local {
		at, is := listener.Addr().(*net.TCPAddr)
		local = is && at.IP.IsLoopback()
	}
	if local {
		s.Allowed = Loopback()
	}
	return s, nil
}
