//go:build unix

package main

import (
	"errors"
	"os"
	"syscall"
)

// sigFileSize: a write beyond the limit of a file's size must be an error, not
// the end.
const sigFileSize = syscall.SIGXFSZ

// lockFile takes the lock of a file's one writer until the file is closed, or
// returns errLocked. A file system without locks has one writer at most by luck.
func lockFile(f *os.File) error {
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return errLocked
	case errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.ENOLCK):
		return nil
	default:
		return err
	}
}
