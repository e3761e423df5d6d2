package inbox

import (
	"hash/maphash"
	"sync"
)

// filter remembers about the latest ids, in bounded memory: it never denies one of
// the last size ids, and takes about one in a hundred others for one. It decides
// nothing: it says which ids are worth looking up.
type filter struct {
	seeds [2]maphash.Seed

	mu       sync.Mutex
	size     int
	n        int // in now
	now, old []uint64
}

const (
	filterBits   = 10 // for each id, in each of two generations
	filterProbes = 6
)

func newFilter(size int) *filter {
	words := (size*filterBits + 63) / 64
	return &filter{
		seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, size: size,
		now: make([]uint64, words), old: make([]uint64, words),
	}
}

// probe calls each with the bits of an id, as long as it returns true.
func (f *filter) probe(id string, each func(word int, bit uint64) bool) {
	h, step := maphash.String(f.seeds[0], id), maphash.String(f.seeds[1], id)|1
	bits := uint64(len(f.now)) * 64
	for range filterProbes {
		at := h % bits
		if !each(int(at/64), 1<<(at%64)) {
			return
		}
		h += step
	}
}

func (f *filter) has(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, old := true, true
	f.probe(id, func(word int, bit uint64) bool {
		now = now && f.now[word]&bit != 0
		old = old && f.old[word]&bit != 0
		return now || old
	})
	return now || old
}

// add remembers an id. When one generation is full the older is forgotten.
func (f *filter) add(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n == f.size {
		f.now, f.old, f.n = f.old, f.now, 0
		clear(f.now)
	}
	f.n++
	f.probe(id, func(word int, bit uint64) bool {
		f.now[word] |= bit
		return true
	})
}
