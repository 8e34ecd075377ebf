//go:build !linux

package main

import "os"

// watchReader is for Linux only; elsewhere the next write tells.
func watchReader(*os.File, func()) {}
