package main

import (
	"os"
	"syscall"
)

// claimStdout keeps standard output to itself and makes everything else that
// is printed go to standard error. Children get handles by name only.
func claimStdout() (*os.File, error) {
	out := os.Stdout
	os.Stdout = os.Stderr
	syscall.Stdout = syscall.Stderr
	return out, nil
}
