package lab

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// TestLessonPages presses what lessons say in a browser, on wide and narrow pages, in
// both languages.
func TestLessonPages(t *testing.T) {
	open := browser(t)
	for _, lang := range []string{"en", "ja"} {
		for _, width := range []int{1280, 390} {
			size := map[int]string{1280: "wide", 390: "phone"}[width]
			t.Run(lang+" "+size, func(t *testing.T) {
				_, url := start(t, "unprotected")
				b := open(t, url+"/lessons/?lang="+lang, width)
				b.is(`document.documentElement.lang === '` + lang + `'`)
				b.is(fmt.Sprintf(`document.querySelectorAll('nav.list li').length === %d`, len(courses["en"].order)))
				b.quiet()
				b.shot("lessons-" + lang + "-" + size)
				for _, name := range courses[lang].order {
					b.goTo(url + "/lessons/" + name + "?lang=" + lang)
					b.quiet()
					if name == "new-key" {
						b.press(`details.client summary`)
						b.quiet()
					}
					if name != "double-click" && name != "thirty-lines" {
						b.shot("lesson-" + name + "-" + lang + "-" + size)
						continue
					}
					steps := 1
					if name == "thirty-lines" && lang == "en" && width == 1280 {
						steps = len(courses[lang].by[name].blocks)
					}
					for n := 1; n <= steps; n++ {
						b.press(fmt.Sprintf(`#step-%d button`, n))
						b.leads(fmt.Sprintf(`document.querySelector('#step-%d.right .figure.yes')`, n))
						b.is(fmt.Sprintf(`location.hash === '#step-%d'`, n))
					}
					b.quiet()
					b.shot("lesson-" + name + "-" + lang + "-" + size)
				}
			})
		}
	}
}

func (b *tab) goTo(url string) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, chromedp.Navigate(url)); err != nil {
		b.t.Fatal(err)
	}
}

// TestLessonByKeyboard goes from the lab's page to a lesson and through its first
// step with the keyboard alone, and from there to the requests on the lab's page.
func TestLessonByKeyboard(t *testing.T) {
	_, url := start(t, "unprotected")
	b := browser(t)(t, url+"/?lang=en", 1280)
	b.enter(`a.lessons`)
	b.leads(`location.pathname === '/lessons/'`)
	b.enter(`nav.list li:nth-child(2) a`)
	b.leads(`document.querySelector('h1').textContent === 'The double click'`)
	b.enter(`#step-1 button`)
	b.leads(`document.querySelector('#step-1.right')`)
	b.enter(`#step-1 a`)
	b.leads(`document.querySelectorAll('.lanes .done').length === 2`)
	// And from the incident back to the lesson.
	b.press(`.incident summary`)
	b.enter(`.incident details[open] a`)
	b.leads(`location.pathname.startsWith('/lessons/')`)
	b.quiet()
}

// leads waits until an expression is true of the page that comes next.
func (b *tab) leads(expression string) {
	b.t.Helper()
	for { // a page that goes away takes the question with it
		_, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](`new Promise(done => { const look = () => { let ok = false; try { ok = !!(`+expression+`) } catch {} ok ? done(true) : setTimeout(look, 20) }; look(); setTimeout(() => done(false), 30000) })`, chromedp.EvalAwaitPromise))
		if err == nil || b.ctx.Err() != nil {
			break
		}
	}
	b.is(expression)
}

// enter goes to a control with the tabulator, and presses the return key.
func (b *tab) enter(selector string) {
	b.t.Helper()
	b.is(`document.querySelector('` + selector + `')`)
	for range 200 {
		if err := chromedp.Do(b.ctx, chromedp.KeyEvent("\t")); err != nil {
			b.t.Fatal(err)
		}
		at, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](`document.activeElement?.matches('`+selector+`')`))
		if err != nil {
			b.t.Fatal(err)
		}
		if at {
			if err := chromedp.Do(b.ctx, chromedp.KeyEvent("\r")); err != nil {
				b.t.Fatal(err)
			}
			return
		}
	}
	b.t.Fatalf("the keyboard does not lead to %s", selector)
}

// TestAgainAfterReload clicks twice, reloads and clicks again, at once and when the
// record is older, and holds that the trail has all of it and that it was done once.
func TestAgainAfterReload(t *testing.T) {
	l, url := start(t, "semel")
	s := l.Switches("orders")
	s.Unique, s.Before = false, 100 // the key alone
	if err := l.Set("orders", s); err != nil {
		t.Fatal(err)
	}
	b := browser(t)(t, url+"/?lang=en&operation=orders", 1280)
	b.press(`[data-send=double]`)
	b.shows("1", "1")
	arrived := func() int {
		list, _ := l.trail.list("", mostAttempts)
		return len(list)
	}
	for _, age := range []time.Duration{0, time.Minute, 22 * time.Hour} {
		// To a record it is the same whether time passes, or it was written earlier.
		if _, err := l.db.ExecContext(t.Context(), "UPDATE record SET begun_at = begun_at - ?, settled_at = settled_at - ?, expires_at = expires_at - ?",
			age.Microseconds(), age.Microseconds(), age.Microseconds()); err != nil {
			t.Fatal(err)
		}
		if err := chromedp.Do(b.ctx, chromedp.Reload()); err != nil {
			t.Fatal(err)
		}
		n := arrived()
		b.press(`[data-send=again]`)
		b.is(fmt.Sprintf(`document.querySelectorAll('.lanes li').length === %d`, n+1))
		b.is(`document.querySelector('.lanes li:last-child').matches('.replayed')`)
		b.shows("1", "1")
	}
	b.is(`document.querySelectorAll('.trail tbody tr').length === 5`)
	b.is(`new Set([...document.querySelectorAll('.trail tbody tr')].map(r => r.cells[4].textContent)).size === 1`)
	b.is(`[...document.querySelectorAll('.trail tbody tr')].filter(r => r.cells[6].textContent).length === 1`)
	b.quiet()

	// A service without a defence makes an order of each.
	if err := l.Set("orders", Presets[0].Switches); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Do(b.ctx, chromedp.Reload()); err != nil {
		t.Fatal(err)
	}
	b.press(`[data-send=again]`)
	b.shows("2", "2")
}
