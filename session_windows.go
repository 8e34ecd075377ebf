package main

import (
	"errors"
	"os"
	"syscall"
	"unsafe"
)

// sigFileSize: there is no such signal.
const sigFileSize = syscall.SIGPIPE

var lockFileEx = syscall.NewLazyDLL("kernel32.dll").NewProc("LockFileEx")

// lockFile takes the lock of a file's one writer until the file is closed, or
// returns errLocked. Windows keeps others from reading what is locked, so it is
// a byte that no file has.
func lockFile(f *os.File) error {
	const failImmediately, exclusive, lockViolation = 1, 2, syscall.Errno(33)
	at := syscall.Overlapped{OffsetHigh: 0x7fffffff}
	ok, _, err := lockFileEx.Call(f.Fd(), failImmediately|exclusive, 0, 1, 0, uintptr(unsafe.Pointer(&at)))
	switch {
	case ok != 0:
		return nil
	case errors.Is(err, lockViolation):
		return errLocked
	}
	return err
}
