package main

import (
	"os"
	"syscall"
	"unsafe"
)

// watchReader calls gone when the other end of a pipe or socket is closed, also
// while nothing is written. (Node gives its children sockets.)
func watchReader(out *os.File, gone func()) {
	poll := struct {
		fd              int32
		events, revents int16 // no events are asked for: errors and hang-ups are always told
	}{fd: int32(out.Fd())}
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&poll)), 1, 0, 0, 0, 0)
		switch errno {
		case 0:
			gone()
			return
		case syscall.EINTR:
		default:
			return
		}
	}
}
