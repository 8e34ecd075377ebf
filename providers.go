// Model providers: the catalog, credentials, and what the wire formats share in
// a request. A streamed call is in stream.go; the wire formats are in
// anthropic.go, chat.go and responses.go.
package main

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// reasoningLevels in rising order. The zot protocol spells "minimal" "minimum".
var reasoningLevels = []string{"off", "minimal", "low", "medium", "high", "xhigh", "max"}

// parseReasoning reads a level as either protocol spells it.
func parseReasoning(word string) (string, error) {
	if word == "minimum" {
		word = "minimal"
	}
	if !slices.Contains(reasoningLevels, word) {
		return "", fmt.Errorf("unknown reasoning level %q (known: %s)", word, strings.Join(zotLevels(reasoningLevels), ", "))
	}
	return word, nil
}

// zotLevels spells levels as the zot protocol does.
func zotLevels(levels []string) []string {
	return strings.Split(strings.Replace(strings.Join(levels, " "), "minimal", "minimum", 1), " ")
}

// Model is one entry of the catalog: a line of models.txt, which the user's
// models.json may change.
type Model struct {
	Provider      string `json:"-"`
	ID, Name      string
	API           string `json:"-"` // anthropic-messages, openai-completions, openai-responses, script
	BaseURL       string
	ContextWindow int // tokens; 0 when unknown
	MaxOutput     int `json:"maxTokens"` // tokens; 0 when unknown
	Vision        bool
	Price
	Above  *tier             // dearer prices for large inputs
	Levels map[string]string // supported reasoning level -> the vendor's word; empty: no reasoning

	Adaptive    bool   // Anthropic: thinking is adaptive, set by an effort
	NoSignature bool   // Anthropic: unsigned thinking may go back
	Thinking    string // Chat: reasoning is switched by thinking.type or reasoning.enabled, set by reasoning.effort, or none; "": by reasoning_effort
	Effort      bool   // Chat: with Thinking, the level goes as reasoning_effort and the switch is only sent for off
	Echo        bool   // Chat: reasoning_content goes back with tool calls
	Kimi        bool   // Chat: tools activated later are sent in their place
}

// Price is in US dollars per million tokens.
type Price struct {
	Input      float64 `json:"priceInput"`
	Output     float64 `json:"priceOutput"`
	CacheRead  float64 `json:"priceCacheRead"`
	CacheWrite float64 `json:"priceCacheWrite"`
}

type tier struct {
	Tokens int // input, cache reads and writes together
	Price
}

// cost prices one call.
func (m *Model) cost(u *Usage) Cost {
	p := m.Price
	if m.Above != nil && u.Input+u.CacheRead+u.CacheWrite > m.Above.Tokens {
		p = m.Above.Price
	}
	c := Cost{
		Input:      float64(u.Input) * p.Input / 1e6,
		Output:     float64(u.Output) * p.Output / 1e6,
		CacheRead:  float64(u.CacheRead) * p.CacheRead / 1e6,
		CacheWrite: float64(u.CacheWrite) * p.CacheWrite / 1e6,
	}
	c.Total = c.Input + c.Output + c.CacheRead + c.CacheWrite
	return c
}

// clamp returns the supported level nearest to the wanted one: itself, else
// the next lower one, else the lowest there is. "" (nothing is sent) stays,
// and is all that a model without reasoning gets.
func (m *Model) clamp(level string) string {
	if level == "" || m.Thinking == "reasoning.effort" {
		return level // that router clamps by itself
	}
	i := slices.Index(reasoningLevels, level)
	nearest := slices.Clone(reasoningLevels[:i+1])
	slices.Reverse(nearest)
	for _, l := range append(nearest, reasoningLevels[i+1:]...) {
		if _, ok := m.Levels[l]; ok {
			return l
		}
	}
	return ""
}

// providerInfo is one provider of the catalog: a [names] line of models.txt.
type providerInfo struct {
	Name         string `json:"-"`
	API, BaseURL string
	APIKeyEnv    string   // variables that may hold the key, with commas between them
	Default      string   // default model id
	AnyModel     bool     // ids outside the catalog are accepted
	Thinking     string   // of models outside the catalog
	table        string   // lines of models.txt that were not read yet
	list         []*Model // see models
}

// models lists the provider's models. The table of a provider is only read when
// it is asked for: most processes need one.
func (p *providerInfo) models() []*Model {
	for line := range strings.Lines(p.table) {
		if line != "\n" {
			m := &Model{Provider: p.Name, API: p.API, BaseURL: p.BaseURL}
			decodeCatalog(line, m)
			m.Name = m.ID
			p.list = append(p.list, m)
		}
	}
	p.table = ""
	return p.list
}

// decodeCatalog reads a piece of models.txt; a test reads all of it.
func decodeCatalog(text string, v any) {
	if err := json.Unmarshal([]byte(text), v); err != nil {
		panic("models.txt: " + err.Error() + ": " + text)
	}
}

// model finds a model by id. The error lists what exists.
func (p *providerInfo) model(id string) (*Model, error) {
	for _, m := range p.models() {
		if m.ID == id {
			return m, nil
		}
	}
	if p.AnyModel && id != "" {
		return &Model{Provider: p.Name, ID: id, Name: id, API: p.API, BaseURL: p.BaseURL, Vision: true, Thinking: p.Thinking}, nil
	}
	var ids []string
	for _, m := range p.models() {
		ids = append(ids, m.ID)
	}
	if id == "" || len(ids) == 0 {
		return nil, fmt.Errorf("provider %s has no model %q: name one with --model or list it in models.json", p.Name, id)
	}
	return nil, fmt.Errorf("unknown model %q for provider %s (known: %s)", id, p.Name, strings.Join(ids, ", "))
}

// catalog is every known provider in a fixed order.
type catalog []*providerInfo

func (c catalog) provider(name string) (*providerInfo, error) {
	var names []string
	for _, p := range c {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return nil, fmt.Errorf("unknown provider %q (known: %s)", name, strings.Join(names, ", "))
}

//go:embed models.txt
var modelsTable string

// loadCatalog reads the built-in table and the user's $ZOT_HOME/models.json.
func loadCatalog(home string) (catalog, error) {
	var c catalog
	_, sections, _ := strings.Cut(modelsTable, "\n[")
	for section := range strings.SplitSeq(sections, "\n[") {
		head, table, _ := strings.Cut(section, "\n")
		names, fields, _ := strings.Cut(head, "]")
		for name := range strings.FieldsSeq(names) {
			p := &providerInfo{Name: name, table: table}
			decodeCatalog(fields, p)
			c = append(c, p)
		}
	}
	return c.merge(filepath.Join(home, "models.json"))
}

// merge adds the providers and models of the user's models.json. A provider or
// model that exists is changed only in the fields that the file gives.
func (c catalog) merge(path string) (catalog, error) {
	type userModel struct {
		Model
		Reasoning *bool
	}
	var typed struct { // finds the errors, with their place
		Providers map[string]struct {
			providerInfo
			Models []userModel
		}
	}
	var file struct { // is decoded onto what exists
		Providers map[string]json.RawMessage
	}
	if err := cmp.Or(readJSONFile(path, &typed), readJSONFile(path, &file)); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(file.Providers)) {
		p, err := c.provider(name)
		if err != nil {
			p = &providerInfo{Name: name, API: "openai-completions"}
			c = append(c, p)
		}
		known := p.models()
		json.Unmarshal(file.Providers[name], p)
		script := p.API == "script" // for tests: needs no address
		if !script && !slices.Contains([]string{"anthropic-messages", "openai-completions", "openai-responses"}, p.API) {
			return nil, fmt.Errorf("%s: provider %q: \"api\" must be anthropic-messages, openai-completions or openai-responses, not %q", path, name, p.API)
		}
		if p.BaseURL == "" && !script {
			return nil, fmt.Errorf("%s: provider %q has no \"baseUrl\"", path, name)
		}
		for _, m := range known {
			m.API, m.BaseURL = p.API, p.BaseURL
		}
		var raw struct{ Models []json.RawMessage }
		json.Unmarshal(file.Providers[name], &raw)
		for i, um := range typed.Providers[name].Models {
			if um.ID == "" {
				return nil, fmt.Errorf("%s: provider %q: models[%d] has no \"id\"", path, name, i)
			}
			at := slices.IndexFunc(p.list, func(m *Model) bool { return m.ID == um.ID })
			if at < 0 {
				at = len(p.list)
				p.list = append(p.list, &Model{Provider: name, Name: um.ID, API: p.API, BaseURL: p.BaseURL, Vision: true, Thinking: p.Thinking})
			}
			m := p.list[at]
			json.Unmarshal(raw.Models[i], m)
			if um.Reasoning != nil && !*um.Reasoning {
				m.Levels = nil
			} else if um.Reasoning != nil && m.Levels == nil {
				m.Levels = map[string]string{"off": "off", "low": "low", "medium": "medium", "high": "high"}
			}
			spelt := m.Levels
			m.Levels = nil
			for level, word := range spelt {
				known, err := parseReasoning(level)
				if err != nil {
					return nil, fmt.Errorf("%s: provider %q: model %q: \"levels\": %w", path, name, um.ID, err)
				}
				if m.Levels == nil {
					m.Levels = map[string]string{}
				}
				m.Levels[known] = word
			}
			for _, dollars := range []float64{m.Price.Input, m.Price.Output, m.Price.CacheRead, m.Price.CacheWrite} {
				if dollars < 0 || dollars > 1e9 {
					return nil, fmt.Errorf("%s: provider %q: model %q: %g is no price in dollars per million tokens", path, name, um.ID, dollars)
				}
			}
			p.Default = cmp.Or(p.Default, m.ID)
		}
	}
	return c, nil
}

// readJSONFile decodes a JSON file of the user's into v. A missing file
// changes nothing; a broken one is an error with its line.
func readJSONFile(path string, v any) error {
	data, err := readRegular(path, maxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = json.Unmarshal(data, v)
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("%s:%s: %w", path, position(data, syntax.Offset), err)
	case errors.As(err, &typ):
		return fmt.Errorf("%s:%s: a value of type %s does not belong here", path, position(data, typ.Offset), typ.Value)
	}
	return err
}

// maxConfig is how large a file of the user's may be that we read.
const maxConfig = 64 << 20

// readRegular reads a file of at most limit bytes, but nothing that could be
// waited for: a FIFO or a device.
func readRegular(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case info.Size() > limit:
		return nil, fmt.Errorf("%s is larger than %d KiB", path, limit>>10)
	}
	return os.ReadFile(path)
}

// position is line:column of a byte offset.
func position(data []byte, offset int64) string {
	before := string(data[:min(int(offset), len(data))])
	line := strings.Count(before, "\n") + 1
	return fmt.Sprintf("%d:%d", line, max(1, len(before)-strings.LastIndex(before, "\n")-1))
}

// credential returns a provider's key: the flag, the environment, auth.json.
// The error says which of them to set.
func credential(p *providerInfo, flag, home string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	for name := range strings.SplitSeq(p.APIKeyEnv, ",") {
		if v := os.Getenv(name); v != "" {
			return v, nil
		}
	}
	var auth map[string]struct {
		APIKey string `json:"api_key"`
	}
	path := filepath.Join(home, "auth.json")
	if err := readJSONFile(path, &auth); err != nil {
		return "", err
	}
	if k := auth[p.Name].APIKey; k != "" {
		return k, nil
	}
	if p.API == "script" || isLoopback(p.BaseURL) {
		return "", nil
	}
	how := "put it into " + path
	if p.APIKeyEnv != "" {
		how = "set " + strings.ReplaceAll(p.APIKeyEnv, ",", " or ") + ", or " + how
	}
	return "", fmt.Errorf("no API key for provider %s: %s as {%q: {\"api_key\": \"...\"}}", p.Name, how, p.Name)
}

// isLoopback reports whether a URL's host is this machine.
func isLoopback(base string) bool {
	u, err := url.Parse(base)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// offeredTools lists the tools that are not deferred, then the deferred ones in
// the order in which results activated them, so that the list only ever grows
// at its end.
func offeredTools(r *request, messages []*Message) (offered []*tool) {
	for _, t := range r.tools {
		if !t.deferred {
			offered = append(offered, t)
		}
	}
	for _, msg := range messages {
		offered = activate(offered, r, msg)
	}
	return offered
}

// activate appends the tools that a result made available.
func activate(offered []*tool, r *request, msg *Message) []*tool {
	for _, name := range msg.Activate {
		i := slices.IndexFunc(r.tools, func(t *tool) bool { return t.name == name })
		if i >= 0 && !slices.Contains(offered, r.tools[i]) {
			offered = append(offered, r.tools[i])
		}
	}
	return offered
}

// appendTools appends a list of tools. The template has a ? for the name, the
// description and the schema.
func appendTools(dst []byte, tools []*tool, template string) []byte {
	for i, t := range tools {
		dst = appendJSON(append(dst, "[,"[min(i, 1)]), template, t.name, t.description, t.schema)
	}
	return append(dst, ']')
}

// sendable returns the texts and images of a message. Blank texts are left out,
// because vendors refuse them, and images that the model cannot see.
func sendable(m *Model, content []Block) (blocks []Block) {
	for _, b := range content {
		if b.Type == "image" && !m.Vision {
			b = Block{Type: "text", Text: "(an image was left out: this model takes no images)"}
		}
		if b.Type == "image" || b.Type == "text" && !blank(b.Text) {
			blocks = append(blocks, b)
		}
	}
	return blocks
}

// appendParts appends texts and images by a wire format's templates: an image's
// has a ? for its type and one for its base64, both within quotes.
func appendParts(dst []byte, blocks []Block, text, image string) []byte {
	for _, b := range blocks {
		if b.Type == "image" {
			dst = appendJSON(dst, image, []byte(b.MimeType), []byte(b.Data))
		} else {
			dst = appendJSON(dst, text, b.Text)
		}
	}
	return dst
}

// split joins the texts of a message and lists its images.
func split(blocks []Block) (text string, images []Block) {
	var texts []string
	for _, b := range blocks {
		if b.Type == "image" {
			images = append(images, b)
		} else {
			texts = append(texts, b.Text)
		}
	}
	return strings.Join(texts, "\n"), images
}

// splitResult splits a tool result for formats in which it is text only: its
// images must follow in another message.
func splitResult(m *Model, content []Block) (text string, images []Block) {
	text, images = split(sendable(m, content))
	if text == "" && images != nil {
		text = "(image below)"
	}
	return cmp.Or(text, "(no output)"), images
}

func blank(s string) bool { return strings.TrimSpace(s) == "" }

// comma appends a comma behind an earlier item.
func comma(dst []byte) []byte {
	if len(dst) > 0 {
		dst = append(dst, ',')
	}
	return dst
}

var (
	wordID  = lazyRegexp(`^[A-Za-z0-9_-]{1,64}$`)
	notWord = lazyRegexp(`[^A-Za-z0-9_-]`)
)

// wireID is a tool call's id as a vendor takes it. One that does not match is
// replaced by a digest, so that different ones stay different.
func wireID(id string, pattern func() *regexp.Regexp) string {
	if pattern().MatchString(id) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return fmt.Sprintf("call_%x", sum[:16])
}

// wireToolName is a tool's name as all vendors take it. Models make names up.
func wireToolName(name string) string {
	name = notWord().ReplaceAllString(name, "_")
	return cmp.Or(name[:min(len(name), 64)], "_")
}
