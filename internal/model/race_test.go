//go:build race

package model

const faults = 1
