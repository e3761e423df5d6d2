package lab

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/semelhq/semel/cmd/semel/internal/browser"
)

// TestLessonPages presses what lessons say in a browser, on wide and narrow pages, in
// both languages.
func TestLessonPages(t *testing.T) {
	open := browser.Start(t)
	for _, lang := range []string{"en", "ja"} {
		for _, width := range []int{1280, 390} {
			size := map[int]string{1280: "wide", 390: "phone"}[width]
			t.Run(lang+" "+size, func(t *testing.T) {
				_, url := start(t, "unprotected")
				b := open(t, url+"/lessons/?lang="+lang, width)
				b.Is(`document.documentElement.lang === '` + lang + `'`)
				b.Is(fmt.Sprintf(`document.querySelectorAll('nav.list li').length === %d`, len(courses["en"].order)))
				b.Quiet()
				b.Shot("lessons-" + lang + "-" + size)
				for _, name := range courses[lang].order {
					b.GoTo(url + "/lessons/" + name + "?lang=" + lang)
					b.Quiet()
					if name == "new-key" {
						b.Press(`details.client summary`)
						b.Quiet()
					}
					if name != "double-click" && name != "thirty-lines" {
						b.Shot("lesson-" + name + "-" + lang + "-" + size)
						continue
					}
					steps := 1
					if name == "thirty-lines" && lang == "en" && width == 1280 {
						steps = len(courses[lang].by[name].blocks)
					}
					for n := 1; n <= steps; n++ {
						b.Press(fmt.Sprintf(`#step-%d button`, n))
						b.Leads(fmt.Sprintf(`document.querySelector('#step-%d.right .figure.yes')`, n))
						b.Is(fmt.Sprintf(`location.hash === '#step-%d'`, n))
					}
					b.Quiet()
					b.Shot("lesson-" + name + "-" + lang + "-" + size)
				}
			})
		}
	}
}

// TestLessonByKeyboard goes from the lab's page to a lesson and through its first
// step with the keyboard alone, and from there to the requests on the lab's page.
func TestLessonByKeyboard(t *testing.T) {
	_, url := start(t, "unprotected")
	b := browser.Start(t)(t, url+"/?lang=en", 1280)
	b.Enter(`a.lessons`)
	b.Leads(`location.pathname === '/lessons/'`)
	b.Enter(`nav.list li:nth-child(2) a`)
	b.Leads(`document.querySelector('h1').textContent === 'The double click'`)
	b.Enter(`#step-1 button`)
	b.Leads(`document.querySelector('#step-1.right')`)
	b.Enter(`#step-1 a`)
	b.Leads(`document.querySelectorAll('.lanes .done').length === 2`)
	// And from the incident back to the lesson.
	b.Press(`.incident summary`)
	b.Enter(`.incident details[open] a`)
	b.Leads(`location.pathname.startsWith('/lessons/')`)
	b.Quiet()
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
	b := browser.Start(t)(t, url+"/?lang=en&operation=orders", 1280)
	b.Press(`[data-send=double]`)
	shows(b, "1", "1")
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
		if err := chromedp.Do(b.Ctx, chromedp.Reload()); err != nil {
			t.Fatal(err)
		}
		n := arrived()
		b.Press(`[data-send=again]`)
		b.Is(fmt.Sprintf(`document.querySelectorAll('.lanes li').length === %d`, n+1))
		b.Is(`document.querySelector('.lanes li:last-child').matches('.replayed')`)
		shows(b, "1", "1")
	}
	b.Is(`document.querySelectorAll('.trail tbody tr').length === 5`)
	b.Is(`new Set([...document.querySelectorAll('.trail tbody tr')].map(r => r.cells[4].textContent)).size === 1`)
	b.Is(`[...document.querySelectorAll('.trail tbody tr')].filter(r => r.cells[6].textContent).length === 1`)
	b.Quiet()

	// A service without a defence makes an order of each.
	if err := l.Set("orders", Presets[0].Switches); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Do(b.Ctx, chromedp.Reload()); err != nil {
		t.Fatal(err)
	}
	b.Press(`[data-send=again]`)
	shows(b, "2", "2")
}
