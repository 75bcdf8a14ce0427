package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/datadir"
	"github.com/moorebus/moorebus/internal/gatewaylog"
	"github.com/moorebus/moorebus/internal/refusal"
)

// useGateway is use over HTTP.
func (f *clientFlags) useGateway(cmd *cobra.Command, c *client, o cli.Gateway, from string, fn func(context.Context, *client) error) error {
	g, err := openGateway(cmd.Context(), o, from)
	if err != nil {
		return err
	}
	defer g.Close()
	c.Conn, c.Log, c.events, c.API = &datadir.Conn{Conn: cli.Conn{Where: o.URL, From: from}}, g, g.Events, g.API
	c.API.Namespace = c.Namespace
	return badFlag(fn(cmd.Context(), c))
}

// openGateway connects to a gateway. Settings that cannot be, and a wrong token, end the process
// with [cli.ExitConfig].
func openGateway(ctx context.Context, o cli.Gateway, from string) (*gatewaylog.Client, error) {
	c, err := gatewaylog.New(gatewaylog.Options(o))
	if err != nil {
		return nil, cli.NotConfigured("%s: %w", from, err)
	}
	err = c.Connect(ctx)
	switch {
	case refusal.Is(err, refusal.CodeUnauthorized):
		return nil, cli.NotConfigured("the gateway %s does not accept the token: set %s or --token", o.URL, cli.TokenVariable)
	case errors.Is(err, gatewaylog.ErrCertificateWanted):
		return nil, cli.NotConfigured("%s: %w: give --cert and --cert-key, or set %s and %s", o.URL, err, "MOOREBUS_CERT", "MOOREBUS_CERT_KEY")
	case err != nil:
		return nil, fmt.Errorf("the gateway %s, by %s: %w", o.URL, from, err)
	}
	return c, nil
}
