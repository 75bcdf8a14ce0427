package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/print"
)

// begins is a [print.RunFinder].
func (c *client) begins(ctx context.Context, prefix string, limit int) ([]list.Run, error) {
	if c.controller != nil { // which need not read the entire log for it
		return c.controller.Find(ctx, c.Namespace, prefix, limit)
	}
	page, err := requests.ListRuns.Call(ctx, c.API, requests.RunList{Query: list.Query{Filters: list.Filters{"id_prefix": prefix}, Limit: limit}})
	return page.Runs, err
}

// offerRuns has the shell offer ids of runs for the first arguments of a command, all of them
// with 0.
func (f *clientFlags) offerRuns(cmd *cobra.Command, arguments int) {
	cmd.ValidArgsFunction = print.OfferRuns(arguments, f.offer)
}

// offerRunFlag is offerRuns for a flag.
func (f *clientFlags) offerRunFlag(cmd *cobra.Command, flag string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, print.OfferRuns(0, f.offer)); err != nil {
		panic(err) // there is no such flag
	}
}

func (f *clientFlags) offer(cmd *cobra.Command, fn func(context.Context, print.RunFinder) error) error {
	return f.use(cmd, reads, func(ctx context.Context, c *client) error { return fn(ctx, c.Find) })
}
