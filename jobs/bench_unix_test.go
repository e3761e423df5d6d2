//go:build unix

package jobs_test

import (
	"testing"

	"github.com/semelhq/semel/jobs/jobstest"
)

func BenchmarkJobs(b *testing.B) { jobstest.Benchmark(b, harness(b)) }
