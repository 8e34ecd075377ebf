//go:build darwin || freebsd || netbsd || openbsd || dragonfly

package main

import "syscall"

const getTermios, setTermios = syscall.TIOCGETA, syscall.TIOCSETA
