//go:build unix

package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var chromiumNames = []string{
	"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "headless_shell",
	"/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
}

// Chromium starts a headless Chromium with a fresh profile and returns the URL
// of its DevTools WebSocket. To it every host below .test is this one. It ends
// with the test.
func Chromium(t testing.TB) string {
	t.Helper()
	long(t)
	program, err := findChromium()
	if err != nil {
		missing(t, err)
	}
	f, err := newFolder()
	if err != nil {
		missing(t, err)
	}
	t.Cleanup(f.remove)
	url, err := f.startChromium(program)
	if err != nil && strings.Contains(err.Error(), "No usable sandbox") {
		// The sandbox needs user namespaces, which containers and hardened
		// kernels may refuse. It guards against hostile pages; here there are
		// only the test's own, and Chromium runs unprivileged all the same.
		url, err = f.startChromium(program, "--no-sandbox")
	}
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	return url
}

func findChromium() (string, error) {
	if given := os.Getenv(EnvChromium); given != "" {
		return given, nil
	}
	for _, name := range chromiumNames {
		if path, err := find(name); err == nil {
			return path, nil
		}
	}
	return findOrInstall("chromium", "chromium")
}

func (f *folder) startChromium(program string, args ...string) (url string, err error) {
	profile := filepath.Join(f.path, "profile")
	p, err := f.start(program, append([]string{
		"--headless", "--remote-debugging-port=0", "--user-data-dir=" + profile,
		// /dev/shm is small in containers.
		"--disable-dev-shm-usage", "--disable-gpu",
		// Nothing but the test's pages: no updates, reports, first-run pages.
		"--no-first-run", "--no-default-browser-check", "--disable-background-networking", "--disable-component-update",
		"--disable-default-apps", "--disable-extensions", "--disable-sync", "--disable-breakpad", "--password-store=basic",
		"--host-resolver-rules=MAP *.test 127.0.0.1",
		// A tab in the background runs like the one in front.
		"--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows", "--disable-renderer-backgrounding",
		"about:blank",
	}, args...)...)
	if err != nil {
		return "", err
	}
	// For the folder's watcher.
	if err := os.WriteFile(filepath.Join(f.path, "pid"), []byte(strconv.Itoa(p.cmd.Process.Pid)), 0o600); err != nil {
		return "", err
	}
	if err := os.Chown(filepath.Join(f.path, "pid"), f.account.uid, f.account.gid); err != nil {
		return "", err
	}
	return url, f.await(p, func(ctx context.Context) error {
		// Its first line is the port, its second the path of the URL.
		text, err := os.ReadFile(filepath.Join(profile, "DevToolsActivePort"))
		if err != nil {
			return err
		}
		port, path, ok := strings.Cut(strings.TrimSpace(string(text)), "\n")
		if !ok {
			return errors.New("its DevToolsActivePort is not whole")
		}
		address := net.JoinHostPort("127.0.0.1", port)
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		url = fmt.Sprintf("ws://%s%s", address, path)
		return c.Close()
	})
}
