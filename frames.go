// JSON lines on pipes, in and out. Rules kept here:
//
//   - One goroutine writes. A frame is appended whole to its buffer, so frames
//     never mix and are written in the order in which things happened; what waits
//     together is written together.
//   - A frame is one line. Lines are split at LF only.
//   - A line that is too long costs itself and nothing else.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"
)

const (
	maxLine = 64 << 20 // bytes of one input line
	// backlog is how many bytes may wait for the reader before streaming waits
	// for it. Responses and events that end something are never held back.
	backlog = 256 << 10
	// maxBacklog is where commands wait too: a client that asks on and on without
	// reading the answers.
	maxBacklog = 64 << 20
)

// writer puts frames on the wire. Its goroutine ends with close or with the
// first write that fails for good.
type writer struct {
	out     io.Writer
	mu      sync.Mutex
	buf     []byte        // frames that wait, each ending in LF
	wake    chan struct{} // capacity 1: there is something to do
	drained *sync.Cond    // buf was taken
	closed  bool
	err     error         // why nothing more can be written
	done    chan struct{} // closed when the goroutine has ended
	gone    func()        // called once when the reader has gone
}

func newWriter(out io.Writer, gone func()) *writer {
	w := &writer{out: out, gone: gone, wake: make(chan struct{}, 1), done: make(chan struct{})}
	w.drained = sync.NewCond(&w.mu)
	go w.loop()
	return w
}

// frame appends one frame made by build, which must end it without LF. It
// never blocks. kick false leaves it to the next flush or frame to send it.
func (w *writer) frame(kick bool, build func(dst []byte) []byte) {
	w.mu.Lock()
	if w.err == nil {
		w.buf = append(build(w.buf), '\n')
	}
	w.mu.Unlock()
	if kick {
		w.kick()
	}
}

func (w *writer) kick() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// loop writes what waits, all of it in one write.
func (w *writer) loop() {
	defer close(w.done)
	var batch []byte
	for {
		w.mu.Lock()
		if len(w.buf) == 0 && w.closed {
			w.mu.Unlock()
			return
		}
		batch, w.buf = w.buf, batch[:0]
		w.drained.Broadcast()
		w.mu.Unlock()
		if len(batch) == 0 {
			<-w.wake
			continue
		}
		if err := writeAll(w.out, batch); err != nil {
			w.mu.Lock()
			w.err, w.buf = err, nil
			w.drained.Broadcast()
			w.mu.Unlock()
			go w.gone()
			return
		}
		if cap(batch) > 16*backlog { // one large answer must not be paid for for ever
			batch = nil
		}
	}
}

// writeAll writes all of b, also to a pipe that was handed over non-blocking.
func writeAll(out io.Writer, b []byte) error {
	for {
		n, err := out.Write(b)
		b = b[n:]
		switch {
		case err == nil:
			return nil
		case errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOBUFS):
			time.Sleep(time.Millisecond)
		default:
			return err
		}
	}
}

// wait returns when fewer than limit bytes wait, the reader has gone, or ctx
// has ended.
func (w *writer) wait(ctx context.Context, limit int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	waitCond(ctx, w.drained, func() bool { return len(w.buf) < limit || w.err != nil })
}

// waitCond waits until c tells that ok holds, or ctx ends. c's lock is held.
func waitCond(ctx context.Context, c *sync.Cond, ok func() bool) {
	if ok() {
		return
	}
	defer context.AfterFunc(ctx, func() {
		c.L.Lock()
		defer c.L.Unlock()
		c.Broadcast()
	})()
	for !ok() && ctx.Err() == nil {
		c.Wait()
	}
}

func (w *writer) flush(ctx context.Context) {
	w.kick()
	w.wait(ctx, backlog)
}

func (w *writer) behind() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.buf) >= backlog
}

// close writes what waits and ends the goroutine. It gives up after limit. The
// error is that of a write that failed, now or before.
func (w *writer) close(limit time.Duration) error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.kick()
	select {
	case <-w.done:
	case <-time.After(limit):
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// inputLine returns one line without its LF (and a CR before it), nil at the end
// of the input. A line over maxLine is read to its end in constant memory and
// is an error.
func inputLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	size := 0
	for {
		part, err := r.ReadSlice('\n')
		size += len(part)
		switch {
		case size > maxLine+1:
			line = nil
		case line == nil && err == nil:
			line = part // the usual case: no copy
		default:
			line = append(line, part...)
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		if err == nil {
			size--
		} else if size == 0 {
			return nil, nil
		}
		if size > maxLine {
			return nil, fmt.Errorf("the line has %d bytes; the limit is %d (64 MiB)", size, maxLine)
		}
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		return line[:len(line):len(line)], nil
	}
}
