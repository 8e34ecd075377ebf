//go:build unix

// soak sends a zot thousands of prompts while all around it fails at random: the
// provider answers, calls tools, refuses, resets, cuts and hangs; the extension
// dies, falls silent and prints noise; the client aborts, and reads slowly or not
// at all.
//
//	go run ./testdata/soak [-prompts N] [-protocol zot|atomic] [-seed N]
//
// It fails unless each command had one response, each accepted prompt one
// terminal event, each request to the provider and each transcript a result right
// behind each tool call, and unless in the end memory, threads, descriptors and
// goroutines are where they were after the first hundred prompts and no process
// is left. Memory and what is left can be seen on Linux only. Everything is
// built first; servers listen on loopback only.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "extension" {
		extension()
		return
	}
	prompts := flag.Int("prompts", 10_000, "how many prompts one process gets")
	protocol := flag.String("protocol", "", "zot or atomic (default: one after the other)")
	seed := flag.Uint64("seed", rand.Uint64(), "repeats the choices of another run, though not its timing")
	zot := flag.String("zot", "", "the binary (default: it is built)")
	flag.Parse()
	dir, err := os.MkdirTemp("", "zot-soak-")
	check(err)
	defer os.RemoveAll(dir)
	if *zot == "" {
		*zot = filepath.Join(dir, "bin", "zot")
		if out, err := exec.Command("go", "build", "-o", *zot, ".").CombinedOutput(); err != nil {
			fail("go build: %v\n%s", err, out)
		}
	}
	protocols := []string{"zot", "atomic"}
	if *protocol != "" {
		protocols = []string{*protocol}
	}
	fmt.Printf("seed %d\n", *seed)
	for _, protocol := range protocols {
		soak(*zot, filepath.Join(dir, protocol), protocol, *prompts, *seed)
	}
}

// soak runs one protocol.
func soak(zot, dir, protocol string, prompts int, seed uint64) {
	settled := min(100, prompts/3) // after so many prompts a process has all that it needs
	p := &provider{}
	server := httptest.NewServer(p)
	defer server.Close()
	p.random.seed(seed)
	mark := fmt.Sprintf("SOAK_MARK=%s-%d-%d", protocol, os.Getpid(), time.Now().UnixNano())
	start := func(name string) *client {
		return newClient(zot, filepath.Join(dir, name), protocol, mark, server.URL, seed)
	}

	began := time.Now()
	first := start("first")
	first.talk(settled)
	goroutines := first.dump()

	long := start("long")
	long.talk(settled)
	before := long.measure()
	for long.prompts < prompts {
		long.talk(min(1000, prompts-long.prompts))
		fmt.Printf("%s: %d prompts, %v\n", protocol, long.prompts, long.measure())
	}
	after := long.measure()
	took := time.Since(began).Round(time.Second)
	now := long.dump()
	expectNobody(mark, 5*time.Second)

	last := start("last") // ends by the end of its input, with processes in the background
	last.background = true
	last.talk(20)
	last.in.Close()
	last.exit(0)
	expectNobody(mark, 0)

	for n := range 3 {
		gone := start(fmt.Sprint("gone", n))
		gone.leave()
		gone.exit(141)
		expectNobody(mark, 0)
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Printf("%s: %d prompts, %d aborts, %d responses, %d frames, %d requests (%s), %d reloads in %v\n", protocol, long.prompts,
		long.aborts, len(long.responses), long.frames, p.requests, p.served(), long.reloads, took)
	fmt.Printf("%s: after %d prompts %v, %d goroutines; after %d %v, %d goroutines\n", protocol, settled, before, goroutines, long.prompts, after, now)
	if p.problem != "" {
		fail("the provider got a request that is wrong: %s", p.problem)
	}
	// Idle connections to the provider and the parts of the garbage collector
	// come and go; what leaks once in a hundred prompts is more than this.
	if after.rss > before.rss+32<<20 || after.threads > before.threads+8 || after.files > before.files+8 || now > goroutines+12 {
		fail("%s: it has grown", protocol)
	}
}

// usage is what a process holds; zero where that cannot be seen.
type usage struct{ rss, threads, files int }

func (u usage) String() string {
	return fmt.Sprintf("%.1f MB, %d threads, %d descriptors", float64(u.rss)/1e6, u.threads, u.files)
}

func usageOf(pid int) (u usage) {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		if n := 0; strings.HasPrefix(line, "VmRSS:") {
			fmt.Sscan(line[len("VmRSS:"):], &n)
			u.rss = n << 10
		} else if strings.HasPrefix(line, "Threads:") {
			fmt.Sscan(line[len("Threads:"):], &u.threads)
		}
	}
	files, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	u.files = len(files)
	return u
}

// expectNobody fails if a process with the mark in its environment still lives
// after a while.
func expectNobody(mark string, patience time.Duration) {
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		var left []string
		files, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, file := range files {
			if env, _ := os.ReadFile(file); strings.Contains(string(env), mark) {
				line, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
				left = append(left, strings.ReplaceAll(string(line), "\x00", " "))
			}
		}
		if left == nil {
			return
		}
		if time.Now().After(end) {
			fail("processes are left: %q", left)
		}
	}
}

func fail(format string, values ...any) {
	fmt.Fprintf(os.Stderr, "soak: "+format+"\n", values...)
	os.Exit(1)
}

func check(err error) {
	if err != nil {
		fail("%v", err)
	}
}
