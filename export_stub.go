package main

import (
	"io"
	"time"
)

type exportInfo struct {
	title, cwd, id, model string
	created               time.Time
	usage                 Usage
}

func exportHTML(w io.Writer, info exportInfo, messages []*Message) error { return nil }
