//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly || windows)

package main

import (
	"errors"
	"os"
)

// There is no terminal host here: nothing counts as a terminal.

func isTerminal(*os.File) bool { return false }

func makeRaw(in, out *os.File) (restore func(), err error) { return nil, errors.ErrUnsupported }

func terminalSize(*os.File) (width, height int) { return 80, 24 }

func watchSize(chan os.Signal) {}
