package inbox

import (
	"fmt"
	"testing"
)

func TestFilter(t *testing.T) {
	const size = 2000
	f := newFilter(size)
	bytes := (len(f.now) + len(f.old)) * 8
	if per := float64(bytes) / size; per > 2.6 {
		t.Errorf("%.2f bytes for each id", per)
	}
	for i := range 4 * size {
		f.add(fmt.Sprint(i))
		for j := max(0, i-size+1); j <= i; j += 499 { // of the latest none is denied
			if !f.has(fmt.Sprint(j)) {
				t.Fatalf("after %d ids, %d is denied", i+1, j)
			}
		}
	}
	wrong := 0
	for i := range size {
		if f.has(fmt.Sprint("other", i)) {
			wrong++
		}
	}
	if wrong > size*4/100 {
		t.Errorf("%d of %d others are taken for known", wrong, size)
	}
	forgotten := 0
	for i := range size {
		if !f.has(fmt.Sprint(i)) {
			forgotten++
		}
	}
	if forgotten < size*9/10 {
		t.Errorf("of the oldest %d only %d are forgotten", size, forgotten)
	}
	if small := newFilter(1); small.has("a") {
		t.Error("an empty filter knows an id")
	}
}
