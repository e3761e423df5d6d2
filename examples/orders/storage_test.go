package main

import (
	"fmt"
	"strings"

	"github.com/chromedp/chromedp"
)

func testLocalStorage(s *stage, p tab) {
	const options = `{ storage: localStorage, tries: 1 }`
	s.set(&s.front, times(2, lose))
	if got := p.once(1, options); got.Error != "TypeError" {
		s.t.Fatalf("once gave %+v", got)
	}
	s.set(&s.front, pass)
	second := p.another(s.url)
	// What a tab writes takes its time to the others.
	eval[bool](second, `localStorage.length === 1 || new Promise((resolve) => addEventListener('storage', () => resolve(true)))`)
	expectTold(s.t, second.once(1, options), 201, true, 1)
	s.expect(1, 1)
}

func testStaleKey(s *stage, p tab) {
	s.set(&s.front, times(2, lose))
	p.setClock(0)
	if got := p.once(1, `{ tries: 1 }`); got.Error != "TypeError" {
		s.t.Fatalf("once gave %+v", got)
	}
	s.set(&s.front, pass)
	sent := len(s.answered)
	for _, ms := range []int{12*3600e3 + 1, -12*3600e3 - 1} { // also by a clock that was set back
		p.setClock(ms)
		if got := p.once(1, `{}`); got.Error != "StaleKeyError" {
			s.t.Fatalf("once gave %+v", got)
		}
	}
	if len(s.answered) != sent {
		s.t.Fatal("a request was sent with a key that is too old")
	}
	p.setClock(12 * 3600e3)
	expectTold(s.t, p.once(1, `{}`), 201, true, 1)
	s.expect(1, 1)
	p.forget(1, `{}`)
	expectTold(s.t, p.once(1, `{}`), 201, false, 2)
	s.expect(2, 2)
}

// A key that cannot be stored is not used.
func testNoStorage(s *stage, p tab) {
	for _, options := range []string{
		`{ storage: { getItem: () => null, setItem() { throw new DOMException('full', 'QuotaExceededError') } } }`,
		`{ get storage() { throw new DOMException('blocked', 'SecurityError') } }`,
	} {
		if got := p.once(1, options); got.Error != "StorageError" {
			s.t.Fatalf("once gave %+v", got)
		}
	}
	p.fill()
	p.click()
	p.says("This browser keeps nothing for this page. Nothing was ordered.")
	s.expect(0, 0)
}

// Entries that are over are removed to make room for new ones.
func testStorageFull(s *stage, p tab) {
	p.setClock(0)
	expectTold(s.t, p.once(1, `{}`), 201, false, 1)
	expectTold(s.t, p.once(2, `{}`), 201, false, 2)
	p.fill()
	if got := p.once(3, `{}`); got.Error != "StorageError" {
		s.t.Fatalf("once gave %+v", got)
	}
	p.setClock(2000)
	expectTold(s.t, p.once(3, `{}`), 201, false, 3)
	s.expect(3, 3)
}

// The response is returned even if the storage fails.
func testStorageFullAtTheAnswer(s *stage, p tab) {
	arrived, release := s.hold()
	p.setClock(0)
	p.click()
	await(s.t, p.ctx, "the order's way to the service", arrived)
	p.fill()
	release()
	p.says("Order 1: 1 × book")
	p.setClock(2000) // it was noted all the same
	p.click()
	p.says("Order 2: 1 × book")
	s.expect(2, 2)

	// A storage that takes nothing more: it stays the same action.
	const options = `{ storage: globalThis.once ??= {
		getItem(slot) { return this[slot] ?? null },
		setItem(slot, text) { if (this[slot]) throw new DOMException('full', 'QuotaExceededError'); this[slot] = text },
	} }`
	expectTold(s.t, p.once(2, options), 201, false, 3)
	p.setClock(3600e3)
	expectTold(s.t, p.once(2, options), 201, true, 3)
	s.expect(3, 3)
}

// An entry goes when it is of no use any more: that of an answer after the
// pause, and any after a month, as an order of then is another one.
func testSwept(s *stage, p tab) {
	const hour, month = 3600e3, 30 * 24 * 3600e3
	eval[bool](p, `sessionStorage.setItem('another', '{"key":"k","made":1,"life":1}'), true`)
	p.setClock(0)
	for n := 1; n <= 3; n++ {
		expectTold(s.t, p.once(n, `{}`), 201, false, int64(n))
	}
	expectTold(s.t, p.once(4, `{ id: 'cart 4' }`), 201, false, 4)
	s.set(&s.front, times(2, lose))
	if got := p.once(5, `{ tries: 1 }`); got.Error != "TypeError" {
		s.t.Fatalf("once gave %+v", got)
	}
	s.set(&s.front, pass)
	p.setClock(2000)
	expectTold(s.t, p.once(6, `{}`), 201, false, 6)
	// The sixth, that of the id, the one without an answer, and another's.
	if kept := p.kept(); len(kept) != 4 {
		s.t.Fatalf("kept: %v", kept)
	}
	p.setClock(12*hour + month - 1)
	if got := p.once(5, `{}`); got.Error != "StaleKeyError" {
		s.t.Fatalf("once gave %+v", got)
	}
	p.setClock(12*hour + month)
	expectTold(s.t, p.once(5, `{}`), 201, false, 7)
	if kept := p.kept(); len(kept) != 2 || kept["another"] == "" {
		s.t.Fatalf("kept: %v", kept)
	}
	s.expect(7, 7)

	// Unless it is for ever.
	const forever = `{ maxAge: Infinity, pause: Infinity }`
	expectTold(s.t, p.once(8, forever), 201, false, 8)
	p.setClock(100 * month)
	expectTold(s.t, p.once(8, forever), 201, true, 8)
	expectTold(s.t, p.once(9, forever), 201, false, 9)
	expectTold(s.t, p.once(8, forever), 201, true, 8)
}

// An entry that cannot be read is treated like a key that is too old.
func testCorruptStorage(s *stage, p tab) {
	s.set(&s.front, times(2, lose))
	if got := p.once(1, `{ tries: 1 }`); got.Error != "TypeError" {
		s.t.Fatalf("once gave %+v", got)
	}
	s.set(&s.front, pass)
	sent := len(s.answered)
	for _, text := range []string{``, `null`, `{"key":"`, `{}`, `{"key":1,"made":1,"life":1}`, `{"key":"k","made":"then","life":1}`, `["k"]`} {
		eval[bool](p, fmt.Sprintf(`sessionStorage.setItem(Object.keys(sessionStorage)[0], %q), true`, text))
		for range 2 {
			if got := p.once(1, `{}`); got.Error != "StaleKeyError" {
				s.t.Fatalf("once gave %+v of %s", got, text)
			}
		}
	}
	if len(s.answered) != sent {
		s.t.Fatal("a request was sent without its key")
	}
	expectTold(s.t, p.once(2, `{}`), 201, false, 2)
	p.forget(1, `{}`)
	expectTold(s.t, p.once(1, `{}`), 201, false, 3)

	// The page leaves it to the user.
	s.set(&s.front, lose)
	eval[bool](p, `{ const later = setTimeout; globalThis.setTimeout = (f, ms) => later(f, ms < 20_000 ? 0 : ms) }; true`)
	p.click()
	p.says("No answer came.")
	s.set(&s.front, pass)
	eval[bool](p, `{ const slot = Object.keys(sessionStorage).find((slot) => slot.includes('place order')); sessionStorage.setItem(slot, '?') }; true`)
	p.click()
	p.says("Whether this was ordered some time ago is not known.")
	p.run(chromedp.Click(chromedp.CSS("#anew")))
	p.says("Order 5")
}

func testForgottenInFlight(s *stage, p tab) {
	arrived, release := s.hold()
	p.begin("first", true)
	await(s.t, p.ctx, "the first order's way to the service", arrived)
	p.forget(1, `{}`)
	p.begin("second", true)
	await(s.t, p.ctx, "the second order's way to the service", arrived)
	release()
	for _, name := range []string{"first", "second"} {
		if got := eval[string](p, name+`.answer`); got != "201" {
			s.t.Fatalf("the %s call was answered with %s", name, got)
		}
	}
	s.expect(2, 2)
	if kept := p.kept(); len(kept) != 1 {
		s.t.Fatalf("kept: %v", kept)
	}
}

func testIDIsNotKept(s *stage, p tab) {
	arrived, release := s.hold()
	eval[bool](p, fmt.Sprintf(`import('/once.js').then(({ once }) => { globalThis.running = once(%s, { id: 'alice@example.com' }) }), true`, request(1)))
	await(s.t, p.ctx, "the order's way to the service", arrived)
	for range 2 {
		if kept := fmt.Sprint(p.kept()); !strings.Contains(kept, "key") || strings.Contains(kept, "alice") || strings.Contains(kept, "example.com") {
			s.t.Fatalf("kept in storage: %s", kept)
		}
		release()
		eval[bool](p, `running.then(() => true)`)
	}
	s.expect(1, 1)
}
