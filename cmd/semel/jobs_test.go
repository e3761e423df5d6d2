package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/semelhq/semel/jobs"
	"github.com/semelhq/semel/outbox"
)

// A person looks at jobs, cancels one, has another run again, and cannot have a done
// one run again. All of it is on record, where the job is looked at and in the trail.
func TestJobsCommands(t *testing.T) { onEachStore(t, testJobsCommands) }

func testJobsCommands(t *testing.T, l *letters) {
	o := l.open()
	l.enqueue(outbox.Message{ID: "message", Topic: "t"})
	for _, id := range []string{"done", "dead", "other", "pending"} {
		m, err := jobs.Job{ID: id, Queue: "mail", Kind: "welcome", Authority: jobs.Authority{Actor: "alice"}}.Message()
		noError(t, err)
		l.enqueue(m)
	}
	claimed, _, err := o.Exchange(t.Context(), nil, outbox.Claim{Topic: jobs.Topic("mail"), Max: 3, Lease: 1 << 40})
	noError(t, err)
	for i, outcome := range []outbox.Outcome{outbox.OutcomeDelivered, outbox.OutcomeDead, outbox.OutcomeDead} {
		_, _, err := o.Exchange(t.Context(), []outbox.Settlement{{Ref: claimed[i].Ref, Outcome: outcome, Cause: "no paper"}}, outbox.Claim{})
		noError(t, err)
	}
	run := func(code int, args ...string) string {
		t.Helper()
		out := semelWith([]string{"USER=ada"}, "", append(append([]string{"jobs"}, args...), "--store", l.url)...)
		if out.code != code {
			t.Fatalf("%v: exit %d: %s%s", args, out.code, out.stdout, out.stderr)
		}
		return out.stdout + out.stderr
	}
	contains := func(got string, all ...string) {
		t.Helper()
		for _, w := range all {
			if !strings.Contains(got, w) {
				t.Errorf("%q is not in\n%s", w, got)
			}
		}
	}
	contains(run(exitOK, "status"), "QUEUE", "mail   ")
	list := run(exitOK, "list")
	contains(list, "welcome", "alice", "no paper", "pending")
	if strings.Contains(list, "message") {
		t.Errorf("a message is listed:\n%s", list)
	}
	var doc struct {
		Jobs []struct {
			ID, Queue, Kind string
			Authority       jobs.Authority
		}
	}
	noError(t, json.Unmarshal([]byte(run(exitOK, "list", "--queue", "mail", "--state", "dead", "--json")), &doc))
	if len(doc.Jobs) != 2 || doc.Jobs[0].ID != "dead" || doc.Jobs[0].Queue != "mail" || doc.Jobs[0].Authority.Actor != "alice" {
		t.Errorf("listed: %+v", doc)
	}
	contains(run(exitNotFound, "show", "message"), "is not a job")
	contains(run(exitUsage, "rerun", "dead"), "--because is missing")
	contains(run(exitRefused, "rerun", "done", "--because", "x"), "done")
	contains(run(exitRefused, "rerun", "pending", "--because", "x"), "is pending")
	contains(run(exitRefused, "cancel", "dead", "--because", "x"), "is dead")
	contains(l.run("redrive", "--delivered", "done").stderr, "is done")
	contains(run(exitOK, "rerun", "dead", "--because", "there is paper"), "1 jobs redriven")
	contains(run(exitOK, "rerun", "--state", "dead", "--queue", "mail"), "1 jobs would be redriven")
	contains(run(exitOK, "rerun", "--state", "dead", "--queue", "mail", "--because", "there is paper", "--by", "bob", "--apply"), "1 jobs redriven")
	contains(run(exitOK, "cancel", "pending", "--because", "sent by hand"), "1 jobs cancelled")
	contains(run(exitOK, "show", "dead"), "redriven by ada: there is paper", "job-authority")
	contains(run(exitOK, "show", "other", "--json"), `"by": "bob"`)
	contains(run(exitOK, "show", "pending"), "dead", "cancelled by ada: sent by hand")
	contains(semelWith(nil, "", "audit", "search", "--event-id", "pending", "--store", l.url).stdout, "cancelled", "operator:ada", "sent by hand")
}
