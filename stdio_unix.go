//go:build unix

package main

import (
	"os"
	"syscall"
)

// claimStdout returns a private descriptor of standard output, which no child
// inherits, and makes descriptor 1 another one of standard error: whatever is
// printed by mistake can not get between the frames.
func claimStdout() (*os.File, error) {
	syscall.ForkLock.RLock()
	fd, err := syscall.Dup(1)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, err
	}
	syscall.Close(1)
	// The lowest free number is taken. (dup2 would say it better, but not every
	// platform has it; nothing else runs yet that opens files.)
	if _, err := syscall.Dup(2); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "stdout"), nil
}
