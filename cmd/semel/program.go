package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// program is one run of the command.
type program struct {
	env            map[string]string
	stdin          io.Reader
	stdout, stderr io.Writer
}

// run executes the command and returns its exit code. When ctx ends, a server
// stops in order.
func run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	p := &program{env: make(map[string]string, len(env)), stdin: stdin, stdout: stdout, stderr: stderr}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		p.env[name] = value
	}
	parsed := false // errors before that are in the command line
	root := p.root()
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := p.readEnv(cmd); err != nil {
			return err
		}
		parsed = true
		return nil
	}
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	f := asFault(err)
	if f == nil {
		f = &fault{code: exitFailed, err: err}
		if !parsed {
			f = &fault{code: exitUsage, err: err, do: fmt.Sprintf("See %s --help. Nothing was done.", cmd.CommandPath())}
		}
	}
	f.print(stderr)
	if f.code == exitUsage && !f.own && strings.HasPrefix(cmd.CommandPath()+" ", "semel probe ") {
		return probeUsage
	}
	return f.code
}

func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "semel",
		Short: "Requests that are retried, raced or repeated take effect once",
		Long: `semel makes requests that are retried, raced or repeated take effect once.

A flag that names an environment variable takes its value if the flag is not given;
an empty variable counts as unset.`,
		Version:       readVersion().String(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(p.gatewayCommand(), p.keysCommand(), p.auditCommand(), p.relayCommand(), p.outboxCommand(), p.jobsCommand(), p.stepsCommand(), p.backupCommand(), p.schemaCommand(), p.migrateCommand(), p.tortureCommand(), p.conformanceCommand(), p.probeCommand(), p.labCommand(), p.labAppCommand(), p.versionCommand(), exitCodesTopic())
	return root
}

// group is a command that only has subcommands.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var names []string
		for _, sub := range cmd.Commands() {
			names = append(names, sub.Name())
		}
		return usagef("%s needs one of these subcommands: %s", cmd.CommandPath(), strings.Join(names, ", "))
	}
	return cmd
}
