// Workflow runs, read from $ZOT_HOME/workflows/*.json: one record a file, which
// other programs and extensions write (spec: Stored summaries and workflow
// history). Nothing here writes.
package main

import (
	"os"
	"path/filepath"
)

// workflowRun is one record. A run that another one started (parentRunId), that
// no session owns (sessionId) or that belongs to another project (cwd) is not
// listed.
type workflowRun struct{ object }

// loadWorkflows reads the runs of a project, in the order of the file names. A
// file that is no record is left out.
func loadWorkflows(home, cwd string) (runs []workflowRun) {
	paths, _ := filepath.Glob(filepath.Join(home, "workflows", "*.json")) // fails for a bad pattern only
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		o, err := parseObject(data)
		if err == nil && o.text("runId") != "" && o.text("sessionId") != "" && o.text("parentRunId") == "" && o.text("cwd") == cwd {
			runs = append(runs, workflowRun{o})
		}
	}
	return runs
}

// summary is what a list shows of a run. What has no summary yet has no keys for
// it.
func (r workflowRun) summary() []byte {
	o := object{}
	for _, key := range []string{"runId", "name", "status", "label", "identity", "summary", "summarizedThrough"} {
		if r.has(key) {
			o[key] = r.object[key]
		}
	}
	return o.encode()
}
