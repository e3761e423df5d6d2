// Package lab is a small payments app that is deliberately vulnerable: each of its
// defences against double execution can be switched off, and the page shows the
// consequences. It is for learners, and for the probe, whose verdicts must agree with
// the switches.
//
// A request goes through operate (lab.go), which checks who sends it and how fast,
// and applies what protects the operation: semel's middleware (guarded.go), the code
// that services write by hand (homemade.go) with the defences that are on, or nothing.
// After it, work and perform (operations.go) do what is asked for. Code that is
// wrong on purpose has a comment that begins with DEFECT.
package lab
