package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/cmd/semel/internal/gatewayfile"
)

const envAnnotation = "semel_env"

// fromEnv lets environment variables stand in for the named flags, or for all
// of the command's own if none is named: SEMEL_ and the flag's name.
func fromEnv(cmd *cobra.Command, names ...string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if len(names) > 0 && !slices.Contains(names, f.Name) {
			return
		}
		env := "SEMEL_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		f.Usage += " [$" + env + "]"
		if f.Annotations == nil {
			f.Annotations = map[string][]string{}
		}
		f.Annotations[envAnnotation] = []string{env}
	})
}

// encryptionFlag is the flag for the keys that encrypt what is in a store.
type encryptionFlag struct{ file string }

const encryptionFlagName = "encryption-keys"

func (e *encryptionFlag) add(cmd *cobra.Command, usage string) {
	cmd.Flags().StringVar(&e.file, encryptionFlagName, "", usage)
}

// cipher reads the keys; nil if none are given.
func (e *encryptionFlag) cipher(cmd *cobra.Command) (*semel.Cipher, error) {
	if e.file == "" {
		return nil, nil
	}
	keys, err := gatewayfile.ReadEncryptionKeys(e.file)
	var c *semel.Cipher
	if err == nil {
		c, err = semel.NewCipher(keys...)
	}
	if err != nil {
		return nil, usagef("%s cannot be used: %w", named(cmd, encryptionFlagName), err)
	}
	return c, nil
}

// readEnv sets the flags that were not given from the environment. Where a file
// says it all, it names the variables that count.
func (p *program) readEnv(cmd *cobra.Command) (err error) {
	file := cmd.Flags().Lookup("config")
	byFile := file != nil && len(file.Annotations[envAnnotation]) > 0 && (file.Changed || p.env[file.Annotations[envAnnotation][0]] != "")
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		env := f.Annotations[envAnnotation]
		if byFile && f.Name != "config" {
			return
		}
		if err != nil || f.Changed || len(env) == 0 || p.env[env[0]] == "" {
			return
		}
		// Not f.Value.Set: a list would be added to its default.
		if e := cmd.Flags().Set(f.Name, p.env[env[0]]); e != nil {
			err = usagef("the environment variable %s (flag --%s) cannot be %q: %w", env[0], f.Name, p.env[env[0]], cause(e))
		}
	})
	return err
}

// cause is the part of a flag's error that the value itself told.
func cause(err error) error {
	if u, ok := err.(interface{ Unwrap() error }); ok {
		if c := u.Unwrap(); c != nil {
			return c
		}
	}
	return err
}

// named is how messages name a setting.
func named(cmd *cobra.Command, flag string) string {
	if f := cmd.Flags().Lookup(flag); f != nil && len(f.Annotations[envAnnotation]) > 0 {
		return "--" + flag + " (" + f.Annotations[envAnnotation][0] + ")"
	}
	return "--" + flag
}

// byteSize is a flag for an amount of bytes.
type byteSize = gatewayfile.Size

// choice is a flag with a fixed set of values.
type choice struct {
	value string
	of    []string
}

// Set implements pflag.Value.
func (c *choice) Set(s string) error {
	if !slices.Contains(c.of, s) {
		return fmt.Errorf("it must be one of %s", strings.Join(c.of, ", "))
	}
	c.value = s
	return nil
}

// String implements pflag.Value.
func (c *choice) String() string { return c.value }

// Type implements pflag.Value.
func (c *choice) Type() string {
	if len(c.of) > 8 {
		return "string" // the usage lists them: the column of the types is as wide as the widest
	}
	return strings.Join(c.of, "|")
}

// choiceFlag adds a choice to a command, with completion for shells.
func choiceFlag(cmd *cobra.Command, c *choice, name, usage string) {
	cmd.Flags().Var(c, name, usage)
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(c.of, cobra.ShellCompDirectiveNoFileComp))
}
