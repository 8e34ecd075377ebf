// puppet is an extension that does what puppet.txt in its working directory
// says, right or wrong, and keeps every frame that it gets in got.txt there.
// puppet.txt is lines; those that begin with "on" wait for a frame, all others
// are done in order at the start:
//
//	# a comment
//	say JSON             prints a frame
//	raw TEXT             prints a line as it is
//	repeat N LINE        does a line N times; %n in it counts from 1
//	sleep 10s            does nothing for so long
//	random 50ms          the same, for at most so long
//	chatter 10s          registers a command every 100 ms, for so long
//	stderr TEXT          prints a line on standard error
//	flood N MB           prints so much on standard error, without a line end
//	exit N               ends with this code
//	kill                 ends by SIGKILL
//	ignore-term          ignores SIGTERM from now on
//	stay                 lives on when its standard input ends
//	fork                 leaves a child that holds its standard output
//	on TYPE[:NAME] LINE  does a line whenever such a frame comes; NAME is its
//	                     name or event; a JSON object means "say"
//
// In what an "on" line prints, $FIELD is a string field of the frame, such as
// $id. A shutdown is acknowledged; the end of standard input ends the puppet.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// puppet is what the script has set.
type puppet struct {
	out  *bufio.Writer
	on   map[string][]string // lines by "TYPE" and "TYPE:NAME"
	stay bool
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "hold" {
		time.Sleep(5 * time.Minute)
		return
	}
	script, err := os.ReadFile("puppet.txt")
	check(err)
	got, err := os.OpenFile("got.txt", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	check(err)
	check(os.WriteFile("pid", []byte(strconv.Itoa(os.Getpid())), 0o666))
	p := &puppet{out: bufio.NewWriter(os.Stdout), on: map[string][]string{}}
	var start []string
	for line := range strings.Lines(string(script)) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "on "); ok {
			key, action, _ := strings.Cut(rest, " ")
			p.on[key] = append(p.on[key], action)
		} else if line != "" && line[0] != '#' {
			start = append(start, line)
		}
	}
	for _, line := range start {
		p.do(line)
	}
	p.out.Flush()
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			break
		}
		got.Write(line)
		p.frame(line)
	}
	if p.stay {
		time.Sleep(5 * time.Minute)
	}
}

// frame reacts to a frame.
func (p *puppet) frame(line []byte) {
	var f map[string]json.RawMessage
	check(json.Unmarshal(line, &f))
	text := func(field string) string {
		var s string
		json.Unmarshal(f[field], &s)
		return s
	}
	typ := text("type")
	lines := p.on[typ]
	for _, field := range []string{"name", "event"} {
		if name := text(field); name != "" {
			lines = append(lines[:len(lines):len(lines)], p.on[typ+":"+name]...)
		}
	}
	for _, line := range lines {
		p.do(fields.ReplaceAllStringFunc(line, func(field string) string {
			return string(bytes.Trim(encode(text(field[1:])), `"`))
		}))
	}
	if typ == "shutdown" && len(lines) == 0 {
		p.do(`say {"type":"shutdown_ack"}`)
	}
	p.out.Flush()
}

var fields = regexp.MustCompile(`\$[a-z_]+`)

func encode(s string) []byte {
	b, err := json.Marshal(s)
	check(err)
	return b
}

// do does one line.
func (p *puppet) do(line string) {
	verb, arg, _ := strings.Cut(line, " ")
	switch {
	case line[0] == '{':
		fmt.Fprintln(p.out, line)
	case verb == "say", verb == "raw":
		fmt.Fprintln(p.out, arg)
	case verb == "repeat":
		times, rest, _ := strings.Cut(arg, " ")
		for n := range number(times) {
			p.do(strings.ReplaceAll(rest, "%n", strconv.Itoa(n+1)))
		}
	case verb == "sleep", verb == "random":
		p.out.Flush()
		d, err := time.ParseDuration(arg)
		check(err)
		if verb == "random" {
			d = rand.N(d)
		}
		time.Sleep(d)
	case verb == "chatter":
		d, err := time.ParseDuration(arg)
		check(err)
		for end := time.Now().Add(d); time.Now().Before(end); {
			p.do(`say {"type":"register_command","name":"chatter"}`)
			p.do("sleep 100ms")
		}
	case verb == "stderr":
		fmt.Fprintln(os.Stderr, arg)
	case verb == "flood":
		io.CopyN(os.Stderr, endless{}, int64(number(strings.TrimSuffix(arg, " MB")))<<20)
	case verb == "exit":
		p.out.Flush()
		os.Exit(number(arg))
	case verb == "kill":
		p.out.Flush()
		self, err := os.FindProcess(os.Getpid())
		check(err)
		self.Kill()
		time.Sleep(time.Minute)
	case verb == "ignore-term":
		signal.Ignore(syscall.SIGTERM)
	case verb == "stay":
		p.stay = true
	case verb == "fork":
		self, err := os.Executable()
		check(err)
		child := exec.Command(self, "hold")
		child.Stdout = os.Stdout
		check(child.Start())
	default:
		check(fmt.Errorf("puppet.txt: what is %q?", line))
	}
}

// endless is a progress bar that never ends its line.
type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = '='
	}
	return len(b), nil
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	check(err)
	return n
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "puppet:", err)
		os.Exit(90)
	}
}
