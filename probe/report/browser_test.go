package report

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/remote"

	"github.com/semelhq/semel/internal/testenv"
)

var shots = flag.String("shots", "", "a folder to put screenshots of the HTML reports into")

// tabEvents is what happened in a tab while it showed a report.
type tabEvents struct {
	mu       sync.Mutex
	requests []string
	console  []string
}

func (e *tabEvents) add(ev any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch ev := ev.(type) {
	case *network.EventRequestWillBeSent:
		e.requests = append(e.requests, ev.Request.URL)
	case *log.EventEntryAdded:
		e.console = append(e.console, ev.Entry.Text)
	case *runtime.EventConsoleAPICalled:
		e.console = append(e.console, "console."+string(ev.Type))
	case *runtime.EventExceptionThrown:
		e.console = append(e.console, ev.ExceptionDetails.Text)
	}
}

// TestHTMLInBrowser opens every report in a real browser: it loads nothing,
// runs nothing, breaks no rule of its own policy, and its style arrives.
func TestHTMLInBrowser(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	ctx, cancel = remote.NewAllocator(ctx, testenv.Chromium(t), remote.NoModifyURL)
	defer cancel()
	ctx, cancel = chromedp.NewContext(ctx)
	defer cancel()
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	for name, r := range runs() {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := HTML(&b, r, extra()); err != nil {
				t.Fatal(err)
			}
			inBrowser(t, ctx, name, b.Bytes())
		})
	}
	// What the test would see if something got through.
	t.Run("sees what is wrong", func(t *testing.T) {
		bad := bytes.Replace(write(t, "html", raceRun()), []byte("<header>"), []byte(`<header><img src="/x.png"><script>console.log(1)</script><p style="color:red">`), 1)
		events, _ := show(t, ctx, bad)
		if len(events.console) < 3 {
			t.Errorf("a page with an image, a script and a style of its own passes: %q", events.console)
		}
	})
}

// show shows a page in a new tab and returns what happened, and the tab.
func show(t *testing.T, ctx context.Context, page []byte) (*tabEvents, context.Context) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(page) // the browser may be gone
	}))
	t.Cleanup(server.Close)
	ctx, cancel := chromedp.NewContext(ctx, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, time.Minute)
	t.Cleanup(cancel)
	events := &tabEvents{}
	if err := chromedp.Listen(ctx, events.add); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, log.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(1180, 900), chromedp.Navigate(server.URL+"/")); err != nil {
		t.Fatal(err)
	}
	// Events come in order, so what the page did while loading is here with
	// the response to this.
	if _, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`, chromedp.EvalAwaitPromise)); err != nil {
		t.Fatal(err)
	}
	events.mu.Lock()
	defer events.mu.Unlock()
	return &tabEvents{requests: slices.Clone(events.requests), console: slices.Clone(events.console)}, ctx
}

func inBrowser(t *testing.T, ctx context.Context, name string, page []byte) {
	events, ctx := show(t, ctx, page)
	if len(events.requests) != 1 || !strings.HasSuffix(events.requests[0], "/") {
		t.Errorf("requests: %q; only the page itself may be loaded", events.requests)
	}
	if len(events.console) > 0 {
		t.Errorf("the console says %q", events.console)
	}
	for _, c := range []struct{ what, expression string }{
		{"the style does not apply", `getComputedStyle(document.querySelector('.banner')).borderLeftStyle === 'solid'`},
		{"the page is wider than the window", `document.documentElement.scrollWidth <= innerWidth`},
		{"a text runs over the edge of its picture", `[...document.querySelectorAll('svg text')].every(x => { const b = x.getBBox(), v = x.ownerSVGElement.viewBox.baseVal; return b.x >= -1 && b.x + b.width <= v.width + 1 })`},
		{"a heading is skipped", `(() => { let last = 0; return [...document.querySelectorAll('h1,h2,h3,h4,h5')].every(h => { const n = +h.tagName[1], ok = n <= last + 1 || n === 5; last = n; return ok }) })()`},
		{"a picture has no name", `[...document.querySelectorAll('svg')].every(s => s.getAttribute('role') === 'img' && s.getAttribute('aria-label') && s.querySelector('title'))`},
		{"an id is there twice", `(() => { const ids = [...document.querySelectorAll('[id]')].map(e => e.id); return new Set(ids).size === ids.length })()`},
		{"a link leads nowhere", `[...document.querySelectorAll('a[href^="#"]')].every(a => document.getElementById(a.getAttribute('href').slice(1)))`},
	} {
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](c.expression))
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if !ok {
			t.Error(c.what)
		}
	}
	// Nor is it wider than a telephone's.
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(390, 800)); err != nil {
		t.Fatal(err)
	}
	if ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`document.documentElement.scrollWidth <= innerWidth`)); err != nil || !ok {
		t.Errorf("the page is wider than a telephone: %v", err)
	}
	if *shots == "" {
		return
	}
	for _, scheme := range []string{"light", "dark", "light-390", "dark-390"} {
		scheme, narrow := strings.CutSuffix(scheme, "-390")
		wide := int64(1280)
		if narrow {
			wide = 390
		}
		if err := chromedp.Do(ctx, chromedp.EmulateViewport(wide, 900)); err != nil {
			t.Fatal(err)
		}
		if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}); err != nil {
			t.Fatal(err)
		}
		png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(*shots, fmt.Sprintf("%s-%s-%d.png", name, scheme, wide)), png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: "print"}); err != nil {
		t.Fatal(err)
	}
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*shots, name+"-print.png"), png, 0o644); err != nil {
		t.Fatal(err)
	}
}
