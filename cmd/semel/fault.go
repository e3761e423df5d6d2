package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// Exit codes. They are part of the command's interface.
const (
	exitOK           = 0
	exitFailed       = 1
	exitUsage        = 2
	exitNotFound     = 3
	exitRefused      = 4
	exitViolated     = 5
	exitInconclusive = 6
)

func exitCodesTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "What the exit codes mean",
		Long: `Every semel command exits with one of these codes:

  0  done
  1  failed: the store could not be read or written, an address could not be
     listened on, or a gateway ended with requests still running
  2  wrong usage: a flag, an argument or an environment variable; nothing was done
  3  there is no such record; nothing was changed
  4  refused: the record's state does not allow it; nothing was changed
  5  semel torture found a broken promise, semel conformance a failing case, or
     semel audit verify a trail that differs from what was sealed
  6  semel torture saw too little to prove anything

semel probe has its own codes: see semel probe --help.

Standard error says what went wrong, what to do, and whether a retry is safe.
Standard output holds results only.`,
	}
}

// fault is an error with an exit code and advice.
type fault struct {
	code int
	err  error
	do   string // what to do, and whether a retry is safe
	own  bool   // the code is one of the command's own, not of the list above
}

func (f *fault) Error() string { return f.err.Error() }

func (f *fault) Unwrap() error { return f.err }

func (f *fault) print(w io.Writer) {
	_, _ = fmt.Fprintf(w, "semel: %v\n", f.err)
	if f.do != "" {
		_, _ = fmt.Fprintln(w, f.do)
	}
}

func asFault(err error) *fault {
	f, _ := errors.AsType[*fault](err)
	return f
}

func usagef(format string, args ...any) error {
	return &fault{code: exitUsage, err: fmt.Errorf(format, args...), do: "Correct it and run the command again. Nothing was done."}
}
