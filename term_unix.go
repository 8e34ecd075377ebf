//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
	"unsafe"
)

func ioctl(f *os.File, request uintptr, to unsafe.Pointer) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), request, uintptr(to)); errno != 0 {
		return errno
	}
	return nil
}

// isTerminal reports whether a file is one.
func isTerminal(f *os.File) bool {
	var t syscall.Termios
	return ioctl(f, getTermios, unsafe.Pointer(&t)) == nil
}

// makeRaw makes a terminal hand over each key as it is, and returns what undoes
// that.
func makeRaw(in, out *os.File) (restore func(), err error) {
	var old syscall.Termios
	if err := ioctl(in, getTermios, unsafe.Pointer(&old)); err != nil {
		return nil, err
	}
	raw := old
	raw.Iflag &^= syscall.BRKINT | syscall.ICRNL | syscall.INLCR | syscall.IGNCR | syscall.INPCK | syscall.ISTRIP | syscall.IXON
	raw.Oflag &^= syscall.OPOST
	raw.Cflag = raw.Cflag&^syscall.CSIZE | syscall.CS8
	raw.Lflag &^= syscall.ECHO | syscall.ICANON | syscall.IEXTEN | syscall.ISIG
	raw.Cc[syscall.VMIN], raw.Cc[syscall.VTIME] = 1, 0
	if err := ioctl(in, setTermios, unsafe.Pointer(&raw)); err != nil {
		return nil, err
	}
	return func() { ioctl(in, setTermios, unsafe.Pointer(&old)) }, nil
}

// terminalSize is columns and rows, 80 and 24 when the terminal does not tell.
func terminalSize(out *os.File) (width, height int) {
	var size struct{ rows, cols, x, y uint16 }
	if ioctl(out, syscall.TIOCGWINSZ, unsafe.Pointer(&size)) != nil || size.cols == 0 || size.rows == 0 {
		return 80, 24
	}
	return int(size.cols), int(size.rows)
}

// watchSize sends when the size may have changed.
func watchSize(changed chan os.Signal) { signal.Notify(changed, syscall.SIGWINCH) }
