package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/store/sqlite"
)

// postgresSchema is the database schema that the gateway uses.
const postgresSchema = "semel"

func (p *program) schemaCommand() *cobra.Command {
	kind := choice{value: "sqlite", of: []string{"sqlite", "postgres"}}
	var (
		role   string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "schema",
		Short: "Print the statements that create a store",
		Long: `Prints the statements that create the tables a store expects. You need not run
them: a store that is opened brings its schema up to date by itself.

If the program must not have the right to create tables, run them as the owner of a
new PostgreSQL database, with --grant-to and the role that the program connects as.
That adds the least rights that the program needs, including those to sweep old audit
entries. A database that has the tables of an earlier version is brought up to date by
semel migrate.`,
		Example: `  semel schema --store sqlite
  semel schema --store postgres --grant-to app | psql --single-transaction -v ON_ERROR_STOP=1 "$OWNER_URL"`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			granting := cmd.Flags().Changed("grant-to")
			switch {
			case granting && kind.value != "postgres":
				return usagef("--grant-to is for --store postgres; a file has no roles")
			case granting && role == "":
				return usagef("--grant-to is empty; name the role that the program connects as")
			}
			var schema, grants string
			switch kind.value {
			case "sqlite":
				schema = sqlite.Schema()
			case "postgres":
				schema = postgres.Schema(postgresSchema)
				if granting {
					grants = postgres.Grants(postgresSchema, role)
				}
			}
			if asJSON {
				out := map[string]string{"store": kind.value, "schema": schema}
				if granting {
					out["grants"] = grants
				}
				return p.printJSON(out)
			}
			_, err := io.WriteString(p.stdout, schema+grants)
			return err
		},
	}
	choiceFlag(cmd, &kind, "store", "kind of store")
	cmd.Flags().StringVar(&role, "grant-to", "", "with --store postgres: also print the grants that this role needs")
	jsonFlag(cmd, &asJSON)
	return cmd
}
