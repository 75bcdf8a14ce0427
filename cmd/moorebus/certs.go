package main

import (
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/certs"
	"github.com/moorebus/moorebus/internal/cli"
)

// certName is a name of a file.
var certName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`)

func certsCommand() *cobra.Command {
	o := certs.Options{}
	var days int
	cmd := &cobra.Command{
		Use:   "certs DIR",
		Short: "Create the certificates of a bus: authority, servers, clients",
		Long: `Certs creates an authority (ca.pem, ca.key) and a certificate that it signs (server.pem,
server.key) in DIR. The certificate is for one server, or for several that also present it
to each other: list all their names and addresses with --host. Clients trust ca.pem
(NATS_CA). --role creates certificates for clients (NATS_CERT, NATS_KEY) of servers that
require them; deploy/nats does not.

Certs keeps existing files. --renew replaces the certificates for the same keys, and the
authority's if it would expire before them; clients that trust the old authority accept
the new certificates. Store ca.key on another machine: only certs needs it.`,
		Example: `  moorebus certs tls
  moorebus certs tls --host bus.example.org --host 10.0.0.5
  moorebus certs tls --host n1.example.org,n2.example.org,n3.example.org
  moorebus certs tls --name n2 --host n2.example.org
  moorebus certs tls --renew --days 90`,
		Args: cobra.ExactArgs(1),
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Server, "name", "server", "name of the server's files")
	flags.StringSliceVar(&o.Hosts, "host", nil, "names and addresses by which the servers are reached; may be repeated (default: those of the existing certificate, else of this machine)")
	flags.StringSliceVar(&o.Clients, "role", nil, "names of clients that get a certificate, such as planner; may be repeated")
	flags.IntVar(&days, "days", 825, "how many days the certificates are valid; the authority is valid for ten years")
	flags.BoolVar(&o.Renew, "renew", false, "replace existing certificates, for the same keys")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.Dir, o.Now, o.For = args[0], time.Now(), time.Duration(days)*24*time.Hour
		if days < 1 {
			return cli.Usage("--days: must be 1 or more, is %d", days)
		}
		for _, name := range append([]string{o.Server}, o.Clients...) {
			if !certName.MatchString(name) || name == certs.Authority {
				return cli.Usage("--name, --role: %q is not a name; use [a-zA-Z0-9._-], and not %s", name, certs.Authority)
			}
		}
		for _, host := range o.Hosts {
			if net.ParseIP(host) == nil && (host == "" || strings.ContainsAny(host, ":/ ")) {
				return cli.Usage("--host: %q is neither a name nor an address", host)
			}
		}
		made, err := certs.Make(o)
		for _, c := range made {
			done := "made"
			if c.Kept {
				done = "kept"
			}
			whom := "an authority"
			if hosts := certs.HostsOf(c.Certificate); len(hosts) > 0 {
				whom = "a server at " + strings.Join(hosts, ", ")
			} else if !c.IsCA {
				whom = "the client " + c.Subject.CommonName
			}
			_, _ = fmt.Fprintf(cmd.OutOrStdout(), "%s %s: for %s, until %s\n", done, c.Path, whom, c.NotAfter.UTC().Format(time.DateOnly))
		}
		return err
	}
	return cmd
}
