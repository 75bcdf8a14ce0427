package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/oauth"
)

func loginCommand() *cobra.Command {
	var o oauth.LoginOptions
	var file string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "login NAME|URL",
		Short: "Log in to an MCP server, and write its token file",
		Long: `Login prints a URL to open in a browser on this machine. After the login it writes the
token, and what is needed to refresh it, to the server's token_file.

NAME is a server of the file of MCP servers; login writes its oauth.token_file. For a
URL pass --token-file. Login registers a client at the authorization server. --client-id
names an existing client instead. --client-metadata names a document that describes the
client, for authorization servers that support such documents.`,
		Example: `  moorebus mcp login tracker
  moorebus mcp login https://mcp.example.org/mcp --token-file tracker-token.json`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&file, "mcp", ".mcp.json", "`file` of MCP servers that has NAME")
	cmd.Flags().StringVar(&o.TokenFile, "token-file", "", "`file` to write the token to (default: the server's oauth.token_file)")
	cmd.Flags().StringVar(&o.ClientID, "client-id", "", "`id` of a public client that the authorization server knows (default: the server's oauth.client_id)")
	cmd.Flags().StringVar(&o.Document, "client-metadata", "", "https `URL` of a client id metadata document")
	cmd.Flags().StringSliceVar(&o.Scopes, "scopes", nil, "scopes to request, separated by commas (default: those that the server names)")
	cmd.Flags().StringVar(&o.Callback, "callback", "127.0.0.1:0", "loopback `address` that the browser is redirected to")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait for the login")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := loginServer(&o, args[0], file); err != nil {
			return err
		}
		switch {
		case o.TokenFile == "":
			return cli.Usage("where does the token go? Give --token-file, or oauth.token_file of the server in %s", file)
		case o.ClientID != "" && o.Document != "":
			return cli.Usage("give --client-id or --client-metadata, not both")
		case timeout <= 0:
			return cli.Usage("--timeout: must be more than 0")
		}
		folder, err := os.Stat(filepath.Dir(o.TokenFile))
		if err == nil && !folder.IsDir() {
			err = fmt.Errorf("%s is no folder", filepath.Dir(o.TokenFile))
		}
		if err != nil { // before a person logs in for nothing
			return fmt.Errorf("the token cannot be stored: %w", err)
		}
		o.Transport = http.DefaultTransport
		o.Show = func(address string) { cli.Say("Open this address in a browser:\n  %s", address) }
		ctx, stop := context.WithTimeoutCause(cmd.Context(), timeout, errors.New("--timeout passed"))
		defer stop()
		if err := oauth.Login(ctx, o); err != nil {
			return err
		}
		cli.Say("The token is in %s.", o.TokenFile)
		return nil
	}
	return cmd
}

// loginServer fills in what the file of MCP servers says about a server that is named. Flags go
// before it.
func loginServer(o *oauth.LoginOptions, server, file string) error {
	if strings.HasPrefix(server, "https://") || strings.HasPrefix(server, "http://") {
		o.URL = server
		return nil
	}
	servers, _, err := agentfile.ReadMCP(file, os.LookupEnv)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(servers, func(s agentfile.MCPServer) bool { return s.Name == server })
	if i < 0 {
		return cli.Usage("%s has no server %q; give a server of that file, or a URL", file, server)
	}
	s := servers[i]
	if s.URL == "" {
		return cli.Usage("the MCP server %q is a command: only a server with a url has a login", server)
	}
	o.URL = s.URL
	if s.OAuth == nil {
		return nil
	}
	if s.OAuth.ClientSecret != "" {
		return cli.Usage("the MCP server %q has a client_secret: login is for public clients; leave client_secret, client_id and token_url out of oauth", server)
	}
	if o.TokenFile == "" {
		o.TokenFile = s.OAuth.TokenFile
	}
	if o.ClientID == "" && o.Document == "" {
		o.ClientID = s.OAuth.ClientID
	}
	if len(o.Scopes) == 0 {
		o.Scopes = s.OAuth.Scopes
	}
	return nil
}
