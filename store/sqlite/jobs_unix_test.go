//go:build unix

package sqlite_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/semelhq/semel/jobs/jobstest"
)

// A process is stopped in the middle of a job, which another takes over.
func TestJobsOfAPausedProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	jobstest.Paused(t, jobsHarness(t, path), func() *exec.Cmd { return command(t, "jobs", path) })
}
