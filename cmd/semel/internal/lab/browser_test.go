package lab

import (
	"testing"

	"github.com/semelhq/semel/cmd/semel/internal/browser"
)

// shows waits until the page tells of so many effects and mails, of two requests
// or more: a browser whose connection ends before a response sends again by
// itself.
func shows(b *browser.Tab, effects, mails string) {
	b.Is(`(([sent, ...rest]) => sent >= 2 && rest.join() === '` + effects + "," + mails + `')([...document.querySelectorAll('.outcome b')].slice(0, 3).map(e => e.textContent))`)
}

// TestPage presses the buttons, with no defence and with all of them.
func TestPage(t *testing.T) {
	open := browser.Start(t)
	for _, lang := range []string{"en", "ja"} {
		for _, width := range []int{1280, 390} {
			name := map[int]string{1280: "wide", 390: "phone"}[width]
			t.Run(lang+" "+name, func(t *testing.T) {
				l, url := start(t, "unprotected")
				s := l.Switches("charges")
				s.Before = 100
				if err := l.Set("charges", s); err != nil {
					t.Fatal(err)
				}
				b := open(t, url+"/?lang="+lang, width)
				b.Is(`document.documentElement.lang === '` + lang + `'`)
				b.Press(`[data-send=double]`)
				shows(b, "2", "2")
				b.Is(`document.querySelectorAll('.incident').length === 2`)
				b.Press(`.incident summary`)
				b.Quiet()
				b.Shot(lang + "-" + name + "-without")
				// With the defences on the same click is one charge.
				b.Press(`[data-preset=semel]`)
				b.Is(`document.querySelector('[data-preset=semel]').ariaPressed === 'true'`)
				b.Press(`[data-send=double]`)
				shows(b, "1", "1")
				b.Is(`!document.querySelector('.incident')`)
				// So it is where the response got lost, and the client hears it after all.
				b.Press(`[data-send=lose]`)
				shows(b, "1", "1")
				b.Is(`document.querySelectorAll('.lanes .replayed').length >= 1`)
				b.Press(`[data-switch=unique]`)
				b.Is(`document.querySelector('[data-switch=unique]').checked === false`)
				b.Press(`[data-send=newkey]`)
				shows(b, "2", "2")
				b.Is(`document.querySelectorAll('.trail tbody tr').length >= 8`)
				if lang == "en" && width == 1280 {
					// The probe says what the two requests have shown.
					b.Press(`[data-probe]`)
					b.Is(`[...document.querySelectorAll('dd')].some(d => d.textContent === 'safe_converge')`)
					b.Is(`!document.querySelector('[data-probe]').disabled`)
				}
				b.Quiet()
				b.Shot(lang + "-" + name + "-with")
			})
		}
	}
}
