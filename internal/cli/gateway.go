package cli

import (
	"cmp"
	"github.com/spf13/pflag"
)

// TokenVariable is the environment variable with the bearer token that clients of HTTP must
// send, and NATSTokenVariable that with what clients of the embedded server must present.
const (
	TokenVariable     = "MOOREBUS_TOKEN"
	NATSTokenVariable = "NATS_TOKEN"
)

// The variables that name a gateway, and who signs its certificate.
const (
	urlVariable = "MOOREBUS_URL"
	caVariable  = "MOOREBUS_CA"
	// The variables of the client's certificate.
	certVariable    = "MOOREBUS_CERT"
	certKeyVariable = "MOOREBUS_CERT_KEY"
)

// Gateway is what a client needs to reach a gateway: its URL, its token, the file of the
// authorities (PEM) of its certificate, and the files of the client's certificate and key (PEM).
type Gateway struct{ URL, Token, CA, Cert, Key string }

// GatewayFlags say that a command goes through a gateway instead of the bus: --url, --token, --ca,
// --cert and --cert-key, or MOOREBUS_URL, MOOREBUS_TOKEN, MOOREBUS_CA, MOOREBUS_CERT and
// MOOREBUS_CERT_KEY.
type GatewayFlags struct {
	url, token, ca string
	cert, key      string
	getenv         func(string) string
}

// AddGatewayFlags adds them. getenv is os.Getenv, or a test's.
func AddGatewayFlags(flags *pflag.FlagSet, getenv func(string) string) *GatewayFlags {
	f := &GatewayFlags{getenv: getenv}
	flags.StringVar(&f.url, "url", "", "`URL` of a gateway to use instead of a bus (default "+urlVariable+")")
	flags.StringVar(&f.token, "token", "", "bearer `token` of the gateway (default "+TokenVariable+")")
	flags.StringVar(&f.ca, "ca", "", "`file` with the authorities of the gateway's certificate, in PEM (default "+caVariable+", else the system's)")
	flags.StringVar(&f.cert, "cert", "", "`file` of this client's certificate, in PEM, for a gateway with --client-ca (default "+certVariable+")")
	flags.StringVar(&f.key, "cert-key", "", "`file` of the certificate's key, in PEM (default "+certKeyVariable+")")
	return f
}

// Gateway returns a gateway's settings and what named it; from is empty if flags and environment
// name a bus, or nothing. Flags take precedence over the environment. Naming both a gateway and a
// bus is a usage error. Without flags (nil) there is no gateway.
func (f *GatewayFlags) Gateway(bus *BusFlags) (o Gateway, from string, err error) {
	if f == nil {
		return o, "", nil
	}
	onBus, named := bus.url != "" || bus.data != "", f.getenv(urlVariable)
	switch {
	case f.url != "" && onBus:
		return o, "", Usage("--url excludes --nats and --data: a command goes through a gateway, or to a bus")
	case f.url != "":
		o.URL, from = f.url, "--url"
	case onBus || named == "":
		if f.token != "" || f.ca != "" || f.cert != "" || f.key != "" {
			return o, "", Usage("--token, --ca, --cert and --cert-key are for a gateway: name it with --url or %s", urlVariable)
		}
		return o, "", nil
	case f.getenv("NATS_URL") != "" || f.getenv("NATS_CONTEXT") != "":
		return o, "", Usage("%s, a gateway, and NATS_URL or NATS_CONTEXT, a bus, are both set: unset one, or use --url or --nats", urlVariable)
	default:
		o.URL, from = named, urlVariable
	}
	o.Token, o.CA = cmp.Or(f.token, f.getenv(TokenVariable)), cmp.Or(f.ca, f.getenv(caVariable))
	o.Cert, o.Key = cmp.Or(f.cert, f.getenv(certVariable)), cmp.Or(f.key, f.getenv(certKeyVariable))
	if (o.Cert == "") != (o.Key == "") {
		return o, "", Usage("--cert and --cert-key belong together, and so do %s and %s: give both, or neither", certVariable, certKeyVariable)
	}
	return o, from, nil
}

// NeedsBus returns the error of a command that works only on a bus, if a gateway is named and no
// bus: by the command's flags (onBus) or by the environment. gateway is the value of --url.
func NeedsBus(command, gateway string, onBus bool, getenv func(string) string) error {
	named := onBus || getenv("NATS_URL") != "" || getenv("NATS_CONTEXT") != "" || getenv("MOOREBUS_DATA") != ""
	from := urlVariable
	switch {
	case gateway != "":
		from = "--url"
	case named || getenv(urlVariable) == "":
		return nil
	}
	return NotConfigured("`%s` needs the bus itself, and %s names a gateway: name the bus with --nats or NATS_URL, or its data directory with --data", command, from)
}

// NeedsBus is [NeedsBus] for a command with these flags and without gateway flags.
func (f *BusFlags) NeedsBus(command string) error {
	return NeedsBus(command, "", f.url != "" || f.data != "", f.getenv)
}

// Without is [NeedsBus] for a command with these flags.
func (f *GatewayFlags) Without(bus *BusFlags, command string) error {
	return NeedsBus(command, f.url, bus.url != "" || bus.data != "", f.getenv)
}
