package semel_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/semelhq/semel"
)

func TestDeclared(t *testing.T) {
	plain := errors.New("plain")
	tests := []struct {
		err    error
		answer semel.Answer
		said   bool
	}{
		{nil, 0, false},
		{plain, 0, false},
		{&semel.Error{Answer: semel.AnswerReleased}, 0, false}, // of another submit
		{semel.NoEffect(plain), semel.AnswerReleased, true},
		{semel.Final(plain), semel.AnswerExecuted, true},
		{semel.Indeterminate("cut off", plain), semel.AnswerUnknown, true},
		{fmt.Errorf("wrapped: %w", semel.NoEffect(plain)), semel.AnswerReleased, true},
		{semel.Indeterminate("doubt", semel.NoEffect(plain)), semel.AnswerUnknown, true},
	}
	for _, tt := range tests {
		if answer, said := semel.Declared(tt.err); answer != tt.answer || said != tt.said {
			t.Errorf("%v declares %v, %v; want %v, %v", tt.err, answer, said, tt.answer, tt.said)
		}
	}
}
