package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/mod/sumdb/note"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/cmd/semel/internal/seal"
)

const sealsFlag = "file of digests, to be kept where the writers of the store cannot reach it"

func (p *program) auditKeyCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "key FILE",
		Short: "Make a key that seals are signed with",
		Long: `Makes an Ed25519 key, writes it to a new file that only you can read, and prints
the public key, which semel audit verify needs. Keep the file where nobody who can
write to the database can read it.`,
		Example: `  semel audit key --name audit.example.com audit.key > audit.pub`,
		Args:    cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&name, "name", "semel-audit", "name of the signer, without spaces and '+'; it is in every checkpoint")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == '+' || r >= 0x7f }) {
			return usagef("--name is %q; it must be visible ASCII without '+'", name)
		}
		secret, public, err := note.GenerateKey(rand.Reader, name)
		if err != nil {
			return err
		}
		f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			_, err = f.WriteString(secret + "\n")
			err = errors.Join(err, f.Sync(), f.Close())
		}
		if err != nil {
			return &fault{code: exitFailed, err: fmt.Errorf("the key could not be written: %w", err), do: "An existing file is never overwritten. Name a new one; a retry is safe."}
		}
		_, err = fmt.Fprintln(p.stdout, public)
		return err
	}
	return cmd
}

// sealSettings are those of seal and verify.
type sealSettings struct {
	file, key string
	json      bool
}

func (p *program) auditSealCommand() *cobra.Command {
	var s sealSettings
	var behind, every time.Duration
	cmd := &cobra.Command{
		Use:   "seal",
		Short: "Add digests of new audit entries to a file, and sign them",
		Long: `Adds a digest of each new entry of the trail to a file, and prints a signed
checkpoint: how many there are, and the root of the Merkle tree (RFC 6962) over
them, as a C2SP tlog-checkpoint. From then on semel audit verify finds entries that
are changed, removed or slipped in. It cannot find what happened to an entry before
it was sealed, so seal often.

Keep some or all checkpoints where nobody who can write to the file can reach them:
printed, mailed, or in an object store that keeps every version. A checkpoint has some
150 bytes and reveals nothing but the number of entries. With --every a checkpoint is
printed whenever there is a new one.

Entries younger than --behind are left for the next time, because an entry whose
transaction is still running may get a place before them. Set it to the longest time
that a transaction can take, plus the time by which this clock can be ahead of the
store's.

With --json each checkpoint is a separate document:

  {"entries": 4301, "checkpoint": "..."}`,
		Example: `  semel audit seal --store sqlite:semel.db --seals /mnt/audit/seals.db --key audit.key
  semel audit seal --seals seals.db --key audit.key --every 1m >> /mnt/elsewhere/checkpoints`,
		Args: cobra.NoArgs,
	}
	p.admin(cmd, func(ctx context.Context, store store, _ []string) error {
		if s.file == "" || s.key == "" {
			return usagef("--seals and --key are needed: a file for the digests, and the key made by semel audit key")
		}
		if behind < 0 || every < 0 {
			return usagef("--behind and --every must not be negative")
		}
		text, err := os.ReadFile(s.key)
		if err != nil {
			return usagef("--key: %v", err)
		}
		signer, err := note.NewSigner(strings.TrimSpace(string(text)))
		if err != nil {
			return usagef("--key %s does not hold a key made by semel audit key", s.key)
		}
		f, err := seal.Open(ctx, s.file, true)
		if err != nil {
			return sealFault(err)
		}
		defer func() { _ = f.Close() }()
		show := p.newProgress()
		defer show.end()
		said := int64(0) // entries under the last checkpoint that was printed
		for {
			_, err := f.Extend(ctx, store, time.Now().Add(-behind), signer, func(c seal.Checkpoint) error {
				if show.say("%d entries sealed", c.Size); c.Size == said {
					return nil
				}
				said = c.Size
				if s.json {
					return p.printJSON(struct {
						Entries    int64  `json:"entries"`
						Checkpoint string `json:"checkpoint"`
					}{c.Size, c.Note})
				}
				_, err := fmt.Fprint(p.stdout, c.Note)
				return err
			})
			switch {
			case err != nil && ctx.Err() != nil && every > 0:
				return nil // by Ctrl-C, as it is meant to end
			case err != nil:
				return sealFault(err)
			case every == 0 && said == 0:
				_, _ = fmt.Fprintf(p.stderr, "There is no entry yet that is older than %v.\n", behind)
			}
			if every == 0 {
				return nil
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(every):
			}
		}
	})
	cmd.Flags().StringVar(&s.file, "seals", "", sealsFlag+"; it is created if it does not exist")
	cmd.Flags().StringVar(&s.key, "key", "", "file with the key made by semel audit key")
	cmd.Flags().DurationVar(&behind, "behind", time.Minute, "leave entries younger than this for the next time")
	cmd.Flags().DurationVar(&every, "every", 0, "repeat at this interval until interrupted")
	jsonFlag(cmd, &s.json)
	return cmd
}

// maxFindings is how many findings a verification prints; it counts them all.
const maxFindings = 1000

func (p *program) auditVerifyCommand() *cobra.Command {
	var s sealSettings
	var kept time.Duration
	var checkpoint string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare the trail with what was sealed, and list the differences",
		Long: `Compares every entry of the trail with its digest, and the digests with the
signed checkpoints. It lists what differs from what was sealed, and then exits with
code 5:

  changed  the entry differs from the one that was sealed
  removed  the entry is gone, and is not older than --kept
  added    the entry is among sealed ones and was not there then: slipped in, or
           from a transaction that took longer than --behind of semel audit seal
  digests  the file of digests does not hold what a checkpoint signs

Give a checkpoint that was kept elsewhere with --checkpoint. Without one, someone who
has the key, or an old copy of the file, may have put back trail and file together.
Entries that came after the last seal are counted as unsealed, and not judged.

With --json the output is one document:

  {"sealed": 4301, "intact": 4300, ..., "findings": [{"what": "changed", ...}]}

which lists the first 1000 findings; "found" counts them all.`,
		Example: `  semel audit verify --store sqlite:semel.db --seals seals.db --public-key audit.pub
  semel audit verify --seals seals.db --public-key audit.pub --checkpoint /mnt/elsewhere/checkpoint-0117`,
		Args: cobra.NoArgs,
	}
	p.admin(cmd, func(ctx context.Context, store store, _ []string) error {
		if s.file == "" || s.key == "" {
			return usagef("--seals and --public-key are needed: the file of digests, and the key printed by semel audit key")
		}
		public, err := os.ReadFile(s.key)
		if err != nil {
			return usagef("--public-key: %v", err)
		}
		verifier, err := note.NewVerifier(strings.TrimSpace(string(public)))
		if err != nil {
			return usagef("--public-key %s does not hold a key printed by semel audit key", s.key)
		}
		var elsewhere *seal.Checkpoint
		if checkpoint != "" {
			text, err := os.ReadFile(checkpoint)
			if err != nil {
				return usagef("--checkpoint: %v", err)
			}
			c, err := seal.ParseCheckpoint(string(text), verifier)
			if err != nil {
				return usagef("--checkpoint %s: %v", checkpoint, err)
			}
			elsewhere = &c
		}
		f, err := seal.Open(ctx, s.file, false)
		if err != nil {
			return sealFault(err)
		}
		defer func() { _ = f.Close() }()
		show := p.newProgress()
		var findings []seal.Finding
		v, err := f.Verify(ctx, store, verifier, time.Now().Add(-kept), elsewhere, func(f seal.Finding) error {
			if len(findings) < maxFindings {
				findings = append(findings, f)
			}
			return nil
		}, func(n int64) { show.say("%d entries compared", n) })
		show.end()
		if err != nil {
			return sealFault(err)
		}
		if err := p.printVerification(v, findings, s.json); err != nil {
			return err
		}
		if v.Findings > 0 {
			return &fault{
				code: exitViolated, err: fmt.Errorf("the trail differs from what was sealed: %d findings", v.Findings),
				do: "Nothing was changed. Keep copies of the store, the file of digests and the checkpoints before you look further.",
			}
		}
		return nil
	})
	cmd.Flags().StringVar(&s.file, "seals", "", sealsFlag)
	cmd.Flags().StringVar(&s.key, "public-key", "", "file with the public key printed by semel audit key")
	cmd.Flags().StringVar(&checkpoint, "checkpoint", "", "file with a checkpoint that was kept elsewhere")
	cmd.Flags().DurationVar(&kept, "kept", 90*24*time.Hour, "how long the store keeps entries; older ones may be gone")
	jsonFlag(cmd, &s.json)
	return cmd
}

func (p *program) printVerification(v seal.Verification, findings []seal.Finding, asJSON bool) error {
	if asJSON {
		if findings == nil {
			findings = []seal.Finding{}
		}
		return p.printJSON(struct {
			seal.Verification
			List []seal.Finding `json:"findings"`
		}{v, findings})
	}
	table := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	if len(findings) > 0 {
		_, _ = fmt.Fprintln(table, "WHAT\tPOSITION\tAT\tKIND\tRECORD\tOPERATION\tKEY\tDETAIL")
	}
	for _, f := range findings {
		position, at, e := "-", "-", semel.TrailEntry{}
		if f.Position > 0 {
			position = fmt.Sprint(f.Position)
		}
		if f.At != nil {
			at = stamp(*f.At)
		}
		if f.Entry != nil {
			e = *f.Entry
		}
		_, _ = fmt.Fprintln(table, strings.Join([]string{f.What, position, at, dash(string(e.Kind)), dash(e.RecordID), dash(e.Operation), dash(e.Key), f.Detail}, "\t"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if more := v.Findings - int64(len(findings)); more > 0 {
		_, _ = fmt.Fprintf(p.stderr, "There are %d findings more.\n", more)
	}
	_, err := fmt.Fprintf(p.stdout, "%d of %d sealed entries are as they were sealed; %d have expired, %d came later.\n", v.Intact, v.Sealed, v.Expired, v.Unsealed)
	if err == nil && !v.Kept {
		_, err = fmt.Fprintln(p.stderr, "No checkpoint from elsewhere was given: who has the key, or an older copy of the file, is not found out.")
	}
	return err
}

func sealFault(err error) error {
	do := "Nothing in the store was changed. What a printed checkpoint counts is in the file; a retry is safe."
	switch {
	case errors.Is(err, seal.ErrNoFile):
		do = "Make it with semel audit seal, or correct --seals. Nothing was done."
	case errors.Is(err, seal.ErrFormat):
		do = "Correct --seals, or use the version of semel that wrote the file. Nothing was done."
	}
	return &fault{code: exitFailed, err: err, do: do}
}
