package main

import (
	"os"
	"syscall"
)

// watchReader calls gone when the other end of a pipe is closed, also while
// nothing is written: a write end becomes "readable" when it has failed. For
// anything but a pipe it returns at once.
func watchReader(out *os.File, gone func()) {
	info, err := out.Stat()
	fd := int(out.Fd())
	if err != nil || info.Mode()&os.ModeNamedPipe == 0 || fd >= 64 {
		return
	}
	for {
		var set syscall.FdSet
		set.Bits[0] = 1 << fd
		_, err := syscall.Select(fd+1, &set, nil, nil, nil)
		if err == nil {
			gone()
			return
		}
		if err != syscall.EINTR {
			return
		}
	}
}
