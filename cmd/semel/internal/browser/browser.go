// Package browser drives Chromium in tests of pages: one way of doing it for all of
// them, with what each page has to hold for people.
package browser

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/remote"

	"github.com/semelhq/semel/internal/testenv"
)

var shots = flag.String("shots", "", "a folder to put screenshots of the page into")

// Tab is a browser's tab, and what it complained about.
type Tab struct {
	t   *testing.T
	Ctx context.Context

	mu         sync.Mutex
	complaints []string
}

// Start starts a browser, which ends with the test, and returns what opens a page in
// a window of its own, of a width.
func Start(t *testing.T) func(t *testing.T, url string, width int) *Tab {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = remote.NewAllocator(ctx, testenv.Chromium(t), remote.NoModifyURL)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T, url string, width int) *Tab {
		ctx, cancel := chromedp.NewContext(ctx, chromedp.WithNewBrowserContext())
		t.Cleanup(cancel)
		b := &Tab{t: t, Ctx: ctx}
		if err := chromedp.Listen(ctx, func(ev any) {
			b.mu.Lock()
			defer b.mu.Unlock()
			switch ev := ev.(type) {
			case *log.EventEntryAdded:
				// An answer that is no success is not an error of the page.
				if !strings.HasPrefix(ev.Entry.Text, "Failed to load resource") {
					b.complaints = append(b.complaints, ev.Entry.Text)
				}
			case *runtime.EventExceptionThrown:
				b.complaints = append(b.complaints, ev.ExceptionDetails.Text)
			}
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := chromedp.Call(ctx, log.Enable, cdp.Empty{}); err != nil {
			t.Fatal(err)
		}
		if err := chromedp.Do(ctx, chromedp.EmulateViewport(int64(width), 900), chromedp.Navigate(url)); err != nil {
			t.Fatal(err)
		}
		return b
	}
}

// Is waits until an expression of the page is true.
func (b *Tab) Is(expression string) {
	b.t.Helper()
	ok, err := chromedp.Run(b.Ctx, chromedp.Evaluate[bool](`new Promise(done => { const look = () => { let ok = false; try { ok = !!(`+expression+`) } catch {} ok ? done(true) : setTimeout(look, 20) }; look(); setTimeout(() => done(false), 30000) })`, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatal(err)
	}
	if !ok {
		text, _ := chromedp.Run(b.Ctx, chromedp.Evaluate[string](`document.body.innerText`))
		b.t.Fatalf("never true: %s\n%s", expression, text)
	}
}

// Press clicks on what the selector finds, once it is there.
func (b *Tab) Press(selector string) {
	b.t.Helper()
	b.Is(`document.querySelector('` + selector + `')`)
	if _, err := chromedp.Run(b.Ctx, chromedp.Evaluate[bool](`document.querySelector('`+selector+`').click() || true`)); err != nil {
		b.t.Fatal(err)
	}
}

// Quiet holds that nothing went wrong in the page, and that who cannot see it well
// or has no mouse can use it.
func (b *Tab) Quiet() {
	b.t.Helper()
	b.Leads(`document.readyState === 'complete'`) // without its style it is another page
	for what, expression := range map[string]string{
		"wider than the window":       `document.documentElement.scrollWidth <= innerWidth`,
		"a control has no name":       `[...document.querySelectorAll('button, input:not([type=hidden], [hidden]), select, a')].every(e => (e.textContent + (e.ariaLabel ?? '') + [...(e.labels ?? [])].map(l => l.textContent).join('')).trim())`,
		"a picture has no name":       `[...document.querySelectorAll('svg')].every(s => s.getAttribute('role') === 'img' && s.hasAttribute('aria-label'))`,
		"a heading is skipped":        `(() => { let last = 0; return [...document.querySelectorAll('h1,h2,h3')].every(h => { const n = +h.tagName[1], ok = n <= last + 1; last = n; return ok }) })()`,
		"a text has too low contrast": contrast,
		"a control cannot be reached": `[...document.querySelectorAll('button, input, select, a')].every(e => e.tabIndex === 0)`,
	} {
		ok, err := chromedp.Run(b.Ctx, chromedp.Evaluate[bool](expression))
		if err != nil {
			b.t.Fatalf("%s: %v", what, err)
		}
		if !ok {
			b.t.Error(what)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.complaints) > 0 {
		b.t.Errorf("the browser complains: %q", b.complaints)
	}
}

// contrast holds the ratio of WCAG 2.2, 1.4.3, for every text.
const contrast = `(() => {
	const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
	const rgb = c => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data] };
	const light = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0);
	const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c } return [255, 255, 255, 255] };
	return [...document.querySelectorAll('body *')].filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) && e.checkVisibility() && !e.closest('svg') && !e.disabled).every(e => {
		const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
		const ok = (a + .05) / (b + .05) >= 4.5;
		if (!ok) console.log(e.outerHTML.slice(0, 200), (a + .05) / (b + .05));
		return ok;
	});
})()`

// Shot takes pictures of the page into the folder of -shots, if there is one.
func (b *Tab) Shot(name string) {
	if *shots == "" {
		return
	}
	for _, scheme := range []string{"light", "dark"} {
		if _, err := chromedp.Call(b.Ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}); err != nil {
			b.t.Fatal(err)
		}
		png, err := chromedp.Run(b.Ctx, chromedp.FullScreenshot(100))
		if err == nil {
			err = os.WriteFile(filepath.Join(*shots, name+"-"+scheme+".png"), png, 0o644)
		}
		if err != nil {
			b.t.Fatal(err)
		}
	}
}

// GoTo goes to another page.
func (b *Tab) GoTo(url string) {
	b.t.Helper()
	if err := chromedp.Do(b.Ctx, chromedp.Navigate(url)); err != nil {
		b.t.Fatal(err)
	}
}

// Leads waits until an expression is true of the page that comes next.
func (b *Tab) Leads(expression string) {
	b.t.Helper()
	for { // a page that goes away takes the question with it
		_, err := chromedp.Run(b.Ctx, chromedp.Evaluate[bool](`new Promise(done => { const look = () => { let ok = false; try { ok = !!(`+expression+`) } catch {} ok ? done(true) : setTimeout(look, 20) }; look(); setTimeout(() => done(false), 30000) })`, chromedp.EvalAwaitPromise))
		if err == nil || b.Ctx.Err() != nil {
			break
		}
	}
	b.Is(expression)
}

// Tab goes to a control with the tabulator.
func (b *Tab) Tab(selector string) {
	b.t.Helper()
	b.Is(`document.querySelector('` + selector + `')`)
	for range 200 {
		if err := chromedp.Do(b.Ctx, chromedp.KeyEvent("\t")); err != nil {
			b.t.Fatal(err)
		}
		at, err := chromedp.Run(b.Ctx, chromedp.Evaluate[bool](`document.activeElement?.matches('`+selector+`')`))
		if err != nil {
			b.t.Fatal(err)
		}
		if at {
			return
		}
	}
	b.t.Fatalf("the keyboard does not lead to %s", selector)
}

// Enter goes to a control with the tabulator, and presses the return key.
func (b *Tab) Enter(selector string) {
	b.t.Helper()
	b.Tab(selector)
	if err := chromedp.Do(b.Ctx, chromedp.KeyEvent("\r")); err != nil {
		b.t.Fatal(err)
	}
}
