package main

import (
	"os"
	"syscall"
	"time"
	"unsafe"
)

var (
	kernel32       = syscall.NewLazyDLL("kernel32.dll")
	setConsoleMode = kernel32.NewProc("SetConsoleMode")
	getScreenInfo  = kernel32.NewProc("GetConsoleScreenBufferInfo")
)

// Console modes (SetConsoleMode).
const (
	processedInput, lineInput, echoInput = 0x1, 0x2, 0x4
	virtualTerminalInput                 = 0x200
	processedOutput                      = 0x1
	virtualTerminalOutput                = 0x4
	noAutoReturn                         = 0x8 // LF moves down only
)

// isTerminal reports whether a file is a console.
func isTerminal(f *os.File) bool {
	var mode uint32
	return syscall.GetConsoleMode(syscall.Handle(f.Fd()), &mode) == nil
}

// makeRaw makes a console hand over each key as terminals do and understand
// their sequences, and returns what undoes that.
func makeRaw(in, out *os.File) (restore func(), err error) {
	set := func(f *os.File, mode uint32) error {
		if ok, _, err := setConsoleMode.Call(f.Fd(), uintptr(mode)); ok == 0 {
			return err
		}
		return nil
	}
	var oldIn, oldOut uint32
	if err := syscall.GetConsoleMode(syscall.Handle(in.Fd()), &oldIn); err != nil {
		return nil, err
	}
	if err := syscall.GetConsoleMode(syscall.Handle(out.Fd()), &oldOut); err != nil {
		return nil, err
	}
	restore = func() { set(in, oldIn); set(out, oldOut) }
	if err = set(in, oldIn&^(processedInput|lineInput|echoInput)|virtualTerminalInput); err == nil {
		err = set(out, oldOut|processedOutput|virtualTerminalOutput|noAutoReturn)
	}
	if err != nil {
		restore()
	}
	return restore, err
}

// terminalSize is the columns and rows of the console's window.
func terminalSize(out *os.File) (width, height int) {
	var info struct {
		size, cursor             struct{ x, y int16 }
		attributes               uint16
		left, top, right, bottom int16
		largest                  struct{ x, y int16 }
	}
	if ok, _, _ := getScreenInfo.Call(out.Fd(), uintptr(unsafe.Pointer(&info))); ok == 0 {
		return 80, 24
	}
	return int(info.right-info.left) + 1, int(info.bottom-info.top) + 1
}

// watchSize sends when the size may have changed: a console does not tell. It
// ends with the process.
func watchSize(changed chan os.Signal) {
	go func() {
		for range time.Tick(300 * time.Millisecond) {
			changed <- nil
		}
	}()
}
