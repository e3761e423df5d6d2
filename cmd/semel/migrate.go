package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/store/sqlite"
)

// migrateJSON is what became of a store. The names are stable.
type migrateJSON struct {
	Store   string `json:"store"`
	Changed bool   `json:"changed"`
	Role    string `json:"role,omitempty"`
}

func (p *program) migrateCommand() *cobra.Command {
	var (
		url, role     string
		check, asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the tables of a store up to date",
		Long: `Brings the tables of a store up to date, and creates them in a PostgreSQL database
that has none. A gateway does the same when it starts: this is for programs that must
not have the right to change tables, and for doing it before a new version starts.
All is changed in one transaction, or nothing. Several at the same time do it once.

On PostgreSQL, running gateways of the earlier version continue to work, but cannot be
restarted. On SQLite, stop them first: they refuse protected requests with 503 until
they are replaced. There is no way back but a backup.`,
		Example: `  semel migrate --store "$OWNER_URL" --grant-to app    # as the owner; gateways connect as app
  semel migrate --store sqlite:semel.db --check        # only look; exit code 1 if it is not up to date`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			u, err := parseStoreURL(url)
			granting := cmd.Flags().Changed("grant-to")
			switch {
			case err != nil:
				return usagef("%s: %w; use the gateway's, such as %s", named(cmd, "store"), err, storeForms)
			case u.kind == "memory":
				return usagef("%s: a memory: store has no tables; use %s", named(cmd, "store"), storeForms)
			case granting && (u.kind != "postgres" || check):
				return usagef("--grant-to is for PostgreSQL, and not for --check")
			case granting && role == "":
				return usagef("--grant-to is empty; name the role that the program connects as")
			}
			ctx := cmd.Context()
			s, err := openAdmin(ctx, cmd, url)
			switch {
			case err == nil:
				err = s.Close(context.WithoutCancel(ctx))
			case check || !errors.Is(err, postgres.ErrOlderSchema) && !errors.Is(err, sqlite.ErrOlderSchema):
				return err
			}
			done := migrateJSON{Store: u.kind, Changed: s == nil, Role: role}
			if done.Changed || granting {
				show := p.newProgress()
				err = migrate(ctx, u, role)
				show.end()
			}
			if err != nil {
				return storeFault(url, err)
			}
			if asJSON {
				return p.printJSON(done)
			}
			text := "The store was up to date."
			if done.Changed {
				text = "The store was brought up to date."
			}
			if role != "" {
				text += " The role " + printable(role) + " has the rights that a gateway needs."
			}
			_, err = fmt.Fprintln(p.stdout, text)
			return err
		},
	}
	cmd.Flags().StringVar(&url, "store", "", "store of the gateway, such as postgres://owner@host/database")
	fromEnv(cmd, "store")
	cmd.Flags().StringVar(&role, "grant-to", "", "on PostgreSQL, also give this role the rights that a gateway needs")
	cmd.Flags().BoolVar(&check, "check", false, "change nothing; fail if the store is not up to date")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// migrate brings a store up to date, and gives a role what it needs, if any.
func migrate(ctx context.Context, u storeURL, role string) error {
	if u.kind == "sqlite" {
		s, err := sqlite.Open(ctx, sqlite.Config{Path: u.path, MustExist: true})
		if err != nil {
			return err
		}
		return s.Close(context.WithoutCancel(ctx))
	}
	pool, err := pgxpool.New(ctx, u.path)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := postgres.Migrate(ctx, pool, postgresSchema); err != nil || role == "" {
		return err
	}
	_, err = pool.Exec(ctx, postgres.Grants(postgresSchema, role))
	return err
}
