package main

import (
	"encoding/json"
	"encoding/xml"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semelhq/semel/probe/conformance"
)

func TestConformance(t *testing.T) {
	endpoint := httptest.NewServer(conformance.Endpoint())
	t.Cleanup(endpoint.Close)
	g := startGateway(t, "--upstream", endpoint.URL, "--store", newStore(t), "--require-key")
	junit := filepath.Join(t.TempDir(), "junit.xml")
	victims := plantLinks(t, junit)
	args := []string{
		"conformance", "--url", g.url + "/conformance",
		"--header", "Authorization: Bearer a", "--other-header", "Authorization: Bearer b", "--junit", junit,
	}
	out := semelWith(nil, "", args...)
	if out.code != exitOK || strings.Contains(out.stdout, "FAILED") || !strings.Contains(out.stdout, " 0 failed") {
		t.Fatalf("exit code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	var suite struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
		Cases    []struct {
			Name string `xml:"name,attr"`
		} `xml:"testcase"`
	}
	text, err := os.ReadFile(junit)
	noError(t, err)
	noError(t, xml.Unmarshal(text, &suite))
	if suite.Tests < 25 || suite.Tests != len(suite.Cases) || suite.Failures != 0 {
		t.Errorf("JUnit has %d tests, %d cases and %d failures", suite.Tests, len(suite.Cases), suite.Failures)
	}

	// The same server does not keep another contract, and the command says so.
	out = semelWith(nil, "", append(args, "--contract", "stripe", "--json", "--timeout", "5s")...)
	want(t, "exit code for another contract", out.code, exitViolated)
	var report conformance.Report
	noError(t, json.Unmarshal([]byte(out.stdout), &report))
	if report.Failed() == 0 || report.Contract != "stripe" || report.Sends == 0 {
		t.Errorf("the report has %d failures, contract %q, %d sends", report.Failed(), report.Contract, report.Sends)
	}
	text, err = os.ReadFile(junit)
	noError(t, err)
	if !strings.Contains(string(text), "<failure message=") {
		t.Error("JUnit shows no failure")
	}
	victims.wantUntouched()

	endpoint.Close()
	gone := semelWith(nil, "", "conformance", "--url", endpoint.URL)
	want(t, "exit code without a server", gone.code, exitFailed)
	for _, bad := range [][]string{
		{},
		{"--url", "nowhere"},
		{"--url", g.url, "--header", "secret-without-colon"},
		{"--url", g.url, "--ca", "none.pem"},
		{"--url", g.url, "--timeout", "-1s"},
		{"--url", g.url, "--in-flight", "accept", "--prefix", ""},
		{"--url", g.url, "--max-request-body", "1GiB"},
	} {
		out := semelWith(nil, "", append([]string{"conformance"}, bad...)...)
		want(t, strings.Join(bad, " ")+": exit code", out.code, exitUsage)
		if strings.Contains(out.stderr, "secret") {
			t.Errorf("a header's value is in the message: %s", out.stderr)
		}
	}
}
