// Package lab is a small payments app that is deliberately vulnerable: each of its
// defences against double execution can be switched off, and what follows is to be
// seen. It is for people who learn, and for the probe, whose verdicts must be what
// the switches say.
//
// A request goes through operate (lab.go): who sends it, how fast, and what
// protects the operation. That is semel's middleware (guarded.go), or the code that
// services write by hand (homemade.go) with the defences that are on, or nothing.
// Behind it work and perform (operations.go) do what is asked for. Code that is
// wrong on purpose has a comment that begins with DEFECT.
package lab
