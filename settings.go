// $ZOT_HOME/settings.json: what the Atomic protocol and the terminal host start
// with. It is written only where the user asked for it (persist), in one step,
// and keys that are not ours stay as they are.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// settings are the keys that zot knows.
type settings struct {
	path string

	DefaultProvider      string            `json:"defaultProvider"`
	DefaultModel         string            `json:"defaultModel"`
	DefaultThinkingLevel string            `json:"defaultThinkingLevel"`
	ModelThinkingLevels  map[string]string `json:"modelThinkingLevels"` // by provider/id
	SteeringMode         string            `json:"steeringMode"`
	FollowUpMode         string            `json:"followUpMode"`
	Compaction           struct {
		Enabled          bool    `json:"enabled"`
		CompressionRatio float64 `json:"compression_ratio"`
		PreserveRecent   int     `json:"preserve_recent"`
	} `json:"compaction"`
	Retry struct {
		Enabled     bool `json:"enabled"`
		MaxRetries  int  `json:"maxRetries"`
		BaseDelayMs int  `json:"baseDelayMs"`
	} `json:"retry"`
	SessionSummary struct {
		Enabled bool `json:"enabled"`
	} `json:"sessionSummary"`
}

func loadSettings(home string) (*settings, error) {
	s := &settings{path: filepath.Join(home, "settings.json"), SteeringMode: "one-at-a-time", FollowUpMode: "one-at-a-time"}
	s.Compaction.Enabled, s.Compaction.CompressionRatio, s.Compaction.PreserveRecent = true, 0.5, 2
	s.Retry.Enabled, s.Retry.MaxRetries, s.Retry.BaseDelayMs = true, maxRetries, int(retryBase/time.Millisecond)
	if err := readJSONFile(s.path, s); err != nil {
		return nil, err
	}
	for key, mode := range map[string]string{"steeringMode": s.SteeringMode, "followUpMode": s.FollowUpMode} {
		if mode != "all" && mode != "one-at-a-time" {
			return nil, fmt.Errorf("%s: %q is all or one-at-a-time, not %q", s.path, key, mode)
		}
	}
	for _, level := range append(slices.Collect(maps.Values(s.ModelThinkingLevels)), cmp.Or(s.DefaultThinkingLevel, "off")) {
		if !slices.Contains(reasoningLevels, level) {
			return nil, fmt.Errorf("%s: a thinking level is one of %s, not %q", s.path, strings.Join(reasoningLevels, ", "), level)
		}
	}
	if r := s.Retry; r.MaxRetries < 0 || r.MaxRetries > 20 || r.BaseDelayMs < 0 || r.BaseDelayMs > 60_000 {
		return nil, fmt.Errorf("%s: \"retry\" has maxRetries from 0 to 20 and baseDelayMs from 0 to 60000, not %d and %d", s.path, r.MaxRetries, r.BaseDelayMs)
	}
	if err := checkCompaction(s.Compaction.CompressionRatio, s.Compaction.PreserveRecent); err != nil {
		return nil, fmt.Errorf("%s: %w", s.path, err)
	}
	return s, nil
}

func checkCompaction(ratio float64, preserve int) error {
	if ratio <= 0 || ratio >= 1 || preserve < 0 {
		return fmt.Errorf("compaction keeps a part (compression_ratio above 0 and below 1) and some messages (preserve_recent from 0), not %g and %d", ratio, preserve)
	}
	return nil
}

// order is what a compact command asks for.
func (s *settings) order(c *command) (o compactOrder, err error) {
	o = compactOrder{reason: "manual", ratio: s.Compaction.CompressionRatio, preserve: s.Compaction.PreserveRecent}
	o.query, err = c.str("query")
	if key := "compression_ratio"; c.has(key) && (json.Unmarshal(c.object[key], &o.ratio) != nil || checkCompaction(o.ratio, 0) != nil) {
		err = c.wrong(key, "a number above 0 and below 1")
	}
	if key := "preserve_recent"; c.has(key) && (json.Unmarshal(c.object[key], &o.preserve) != nil || checkCompaction(0.5, o.preserve) != nil) {
		err = c.wrong(key, "a whole number from 0")
	}
	return o, err
}

// saveLevel makes a thinking level the default, and that of a model.
func (s *settings) saveLevel(m *Model, level string) error {
	if s.ModelThinkingLevels == nil {
		s.ModelThinkingLevels = map[string]string{}
	}
	s.ModelThinkingLevels[m.ref()] = level
	return s.save(map[string]any{"defaultThinkingLevel": level, "modelThinkingLevels": s.ModelThinkingLevels})
}

// ref names a model with its provider.
func (m *Model) ref() string { return m.Provider + "/" + m.ID }

// save changes keys of the file.
func (s *settings) save(changes map[string]any) error {
	return editJSONFile(s.path, func(o object) {
		for key, v := range changes {
			o[key] = encode(v)
		}
	})
}

// editJSONFile changes an object in a file that only the user reads, in one
// step. A file that is missing is made.
func editJSONFile(path string, edit func(o object)) error {
	data, err := readRegular(path, maxConfig)
	if os.IsNotExist(err) {
		data = []byte("{}")
		err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, data, 0o600)) // the mode stays
	}
	if err != nil {
		return err
	}
	o, err := parseObject(data)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	edit(o)
	var out bytes.Buffer
	json.Indent(&out, encode(o), "", "  ") // which can not fail
	out.WriteByte('\n')
	return replaceFile(path, out.Bytes())
}
