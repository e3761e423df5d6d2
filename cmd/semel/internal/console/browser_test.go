package console

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/cmd/semel/internal/browser"
)

// inBrowser has records in every state, and is where the browser logs in.
func inBrowser(t *testing.T) *world {
	w := newWorld(t)
	w.unknown(7, "the handler answered 502")
	w.unknown(2, "the upstream was cut off before its response, and nobody knows what it has done with the request by now")
	w.claim(func(semel.Claim) {})
	w.claim(func(c semel.Claim) {
		_, err := c.Complete(t.Context(), semel.Result{Codec: "http/1", Body: []byte("{}"), Label: "201"})
		noError(t, err)
	})
	return w
}

// TestPages goes from the login to a settled record and through all pages, wide and
// narrow, in both languages.
func TestPages(t *testing.T) {
	open := browser.Start(t)
	for _, lang := range []string{"en", "ja"} {
		for _, width := range []int{1280, 390} {
			size := map[int]string{1280: "wide", 390: "phone"}[width]
			t.Run(lang+" "+size, func(t *testing.T) {
				w := inBrowser(t)
				look := func(b *browser.Tab, name string) {
					b.Quiet()
					b.Shot("console-" + name + "-" + lang + "-" + size)
				}
				b := open(t, w.url+"/console/?lang="+lang, width)
				b.Is(`document.documentElement.lang === '` + lang + `'`)
				look(b, "login")
				b.Is(fmt.Sprintf(`document.querySelector('[name=token]').value = %q`, token))
				b.Press(`.narrow button`)
				b.Leads(`document.querySelector('.grid table')`)
				b.Is(`document.documentElement.lang === '` + lang + `'`) // remembered
				look(b, "overview")
				b.Press(`.tabs a:nth-child(2)`)
				b.Leads(`document.querySelectorAll('[name=record]').length === 9`)
				look(b, "unknown")
				b.Press(`tbody tr:nth-child(1) a`)
				b.Leads(`document.querySelector('dl')`)
				b.Press(`[value=result]`)
				b.Is(`document.querySelector('[name=status]').checkVisibility()`)
				look(b, "record")
				b.GoTo(w.url + "/console/records?state=unknown")
				b.Press(`[name=record]`)
				b.Press(`[value=no-effect]`)
				b.Press(`.buttons .main`)
				b.Leads(`document.querySelector('[role=alert]') && !document.querySelector('#carry-out')`)
				look(b, "wrong")
				b.Is(`document.querySelector('[name=because]').value = 'not in the ledger'`)
				b.Is(`document.querySelectorAll('[name=who]')[0].value = 'alice'`)
				b.Press(`form[action="/console/settle"] .buttons button`)
				b.Leads(`document.querySelector('#carry-out')`)
				look(b, "preview")
				b.Press(`#carry-out`)
				b.Leads(`document.querySelector('[data-ended]')`)
				b.Is(`document.querySelector('#settled').textContent === '1'`)
				look(b, "run")
				for _, path := range []string{"runs", "configuration", "records"} {
					b.GoTo(w.url + "/console/" + path)
					b.Leads(`document.querySelector('main')`)
					look(b, path)
				}
				want(t, "unknown records", len(w.list(semel.StateUnknown)), 8)
			})
		}
	}
}

// TestByKeyboard settles all that fit, from the login on, without a mouse.
func TestByKeyboard(t *testing.T) {
	w := inBrowser(t)
	b := browser.Start(t)(t, w.url+"/console/?lang=en", 1280)
	write := func(selector, text string) {
		b.Tab(selector)
		noError(t, chromedp.Do(b.Ctx, chromedp.KeyEvent(text)))
	}
	write(`[name=token]`, token)
	b.Enter(`.narrow button`)
	b.Leads(`document.querySelector('.grid table')`)
	b.Enter(`.tabs a:nth-child(2)`)
	b.Leads(`document.querySelector('[name=record]')`)
	b.Tab(`[name=way]`)
	noError(t, chromedp.Do(b.Ctx, chromedp.KeyEvent(" "), chromedp.KeyEvent(kb.ArrowDown)))
	b.Is(`document.querySelector('[value=no-effect]').checked`)
	write(`[name=because]`, "not in the ledger")
	write(`[name=who]`, "alice")
	b.Enter(`[name=all]`)
	b.Leads(`document.querySelector('#carry-out')`)
	b.Enter(`#carry-out`)
	b.Leads(`document.querySelector('[data-ended]')`)
	b.Quiet()
	want(t, "unknown records", len(w.list(semel.StateUnknown)), 0)
}

// TestDoubleClick: clicked twice, and sent again by a reload, it is one run.
func TestDoubleClick(t *testing.T) {
	w := inBrowser(t)
	w.login(w.client)
	b := browser.Start(t)(t, w.url+"/console/?lang=en", 1280)
	b.Is(fmt.Sprintf(`document.querySelector('[name=token]').value = %q`, token))
	b.Press(`.narrow button`)
	b.Leads(`document.querySelector('.grid table')`)
	b.GoTo(w.url + "/console/records?state=unknown")
	b.Press(`[value=no-effect]`)
	b.Is(`document.querySelector('[name=because]').value = 'not in the ledger'`)
	b.Is(`document.querySelector('[name=who]').value = 'alice'`)
	b.Press(`[name=all]`)
	b.Leads(`document.querySelector('#carry-out')`)
	noError(t, chromedp.Do(b.Ctx, chromedp.DoubleClick(`#carry-out`)))
	b.Leads(`document.querySelector('[data-ended]')`)
	b.Is(`document.querySelector('#settled').textContent === '9'`)
	noError(t, chromedp.Do(b.Ctx, chromedp.Reload()))
	b.Leads(`document.querySelector('#settled').textContent === '9'`)
	want(t, "runs", len(w.page.runs), 1)
	trail, err := w.store.Store.Trail(t.Context(), semel.TrailFilter{Kind: semel.TrailResolved})
	noError(t, err)
	want(t, "resolutions", len(trail), 9)
}

// TestWithoutScript: the pages say the same where no script runs.
func TestWithoutScript(t *testing.T) {
	w := inBrowser(t)
	b := browser.Start(t)(t, w.url+"/console/?lang=en", 390)
	_, err := chromedp.Call(b.Ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	noError(t, err)
	text := func(path, of string) string {
		t.Helper()
		b.GoTo(w.url + path)
		s, err := chromedp.Run(b.Ctx, chromedp.Text(of))
		noError(t, err)
		return s
	}
	noError(t, chromedp.Do(b.Ctx, chromedp.SendKeys(`[name=token]`, token+"\r")))
	if _, err := chromedp.Run(b.Ctx, chromedp.WaitVisible(`.grid`)); err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{
		"/console/": "1,234", "/console/records?state=unknown": "the handler answered 502", "/console/configuration": "sqlite:semel.db",
	} {
		if s := text(path, "main"); !strings.Contains(s, says) {
			t.Errorf("%s does not say %q:\n%s", path, says, s)
		}
	}
}
