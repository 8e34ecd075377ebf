// The baseline for streaming: the loop that one writes first. It posts a
// request, scans the lines of the answer, decodes each event with encoding/json
// and prints each text delta as a frame.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
)

type event struct {
	Type  string `json:"type"`
	Index int    `json:"index"`
	Delta struct {
		Type string `json:"type"`
		Text string `json:"text"`
	} `json:"delta"`
}

type frame struct {
	Type  string `json:"type"`
	Delta string `json:"delta,omitempty"`
}

func main() {
	bufio.NewReader(os.Stdin).ReadString('\n')
	out := json.NewEncoder(os.Stdout)
	resp, err := http.Post(os.Args[1], "application/json", strings.NewReader("{}"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var e event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			continue
		}
		if e.Type == "content_block_delta" && e.Delta.Type == "text_delta" {
			out.Encode(frame{Type: "text_delta", Delta: e.Delta.Text})
		}
	}
	out.Encode(frame{Type: "done"})
	bufio.NewReader(os.Stdin).ReadString('\n')
}
