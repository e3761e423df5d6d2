package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/semelhq/semel/store/sqlite"
)

func (p *program) schemaCommand() *cobra.Command {
	kind := choice{value: "sqlite", of: []string{"sqlite"}}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "schema",
		Short: "Print the statements that create a store",
		Long: `Prints the statements that make a database what the store expects. Nobody has
to run them: a store that is opened brings its schema up to date by itself.`,
		Example: "  semel schema --store sqlite",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return p.printJSON(map[string]string{"store": kind.value, "schema": sqlite.Schema()})
			}
			_, err := io.WriteString(p.stdout, sqlite.Schema())
			return err
		},
	}
	choiceFlag(cmd, &kind, "store", "kind of store")
	jsonFlag(cmd, &asJSON)
	return cmd
}
