// What can go wrong around a model call: the catalog and the user's files, the
// judgement of errors, redirects, time limits, lost connections.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestModelsTable(t *testing.T) {
	c, err := loadCatalog(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	strict := func(text string, v any) {
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(v); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	models := 0
	for line := range strings.Lines(modelsTable) {
		switch line[0] {
		case '[':
			_, fields, _ := strings.Cut(line, "]")
			strict(fields, &providerInfo{})
		case '{':
			strict(line, &Model{})
			models++
		}
	}
	if models < 100 {
		t.Errorf("only %d models", models)
	}
	for _, p := range c {
		seen := map[string]bool{}
		for _, m := range p.models() {
			checkCatalogModel(t, p, m)
			if seen[m.ID] {
				t.Errorf("%s/%s is there twice", p.Name, m.ID)
			}
			seen[m.ID] = true
		}
		if !p.AnyModel && !seen[p.Default] {
			t.Errorf("%s: the default model %q is not in the table", p.Name, p.Default)
		}
		if u, err := url.Parse(p.BaseURL); err != nil || u.Host == "" && p.API != "script" {
			t.Errorf("%s: base URL %q", p.Name, p.BaseURL)
		}
		if p.Name != "kimi" { // has the models of moonshotai
			models -= len(p.models())
		}
	}
	if models != 0 {
		t.Errorf("%d models were not read", models)
	}
}

func checkCatalogModel(t *testing.T, p *providerInfo, m *Model) {
	t.Helper()
	if m.Provider != p.Name || m.API != p.API || m.BaseURL != p.BaseURL {
		t.Errorf("%s/%s belongs to %s %s %s", p.Name, m.ID, m.Provider, m.API, m.BaseURL)
	}
	if m.ContextWindow < 1000 || m.MaxOutput < 1000 || m.MaxOutput > m.ContextWindow {
		t.Errorf("%s/%s: window %d, output %d", p.Name, m.ID, m.ContextWindow, m.MaxOutput)
	}
	for level, word := range m.Levels {
		if !slices.Contains(reasoningLevels, level) || word == "" {
			t.Errorf("%s/%s: level %q=%q", p.Name, m.ID, level, word)
		}
	}
	if !slices.Contains([]string{"", "none", "thinking.type", "reasoning.enabled", "reasoning.effort"}, m.Thinking) {
		t.Errorf("%s/%s: thinking=%s", p.Name, m.ID, m.Thinking)
	}
	if m.Above != nil && (m.Above.Tokens < 1000 || m.Above.Input <= m.Price.Input) {
		t.Errorf("%s/%s: above %+v", p.Name, m.ID, *m.Above)
	}
}

func TestCatalogLookup(t *testing.T) {
	c, err := loadCatalog(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.provider("opnai"); err == nil || !strings.Contains(err.Error(), `"opnai"`) || !strings.Contains(err.Error(), "openai") {
		t.Errorf("unknown provider: %v", err)
	}
	p, _ := c.provider("openai")
	if _, err := p.model("gpt-9"); err == nil || !strings.Contains(err.Error(), "gpt-5.4") {
		t.Errorf("unknown model: %v", err)
	}
	p, _ = c.provider("ollama")
	if m, err := p.model("qwen3:8b"); err != nil || m.Provider != "ollama" || m.BaseURL != p.BaseURL {
		t.Errorf("any model: %+v %v", m, err)
	}
	if _, err := p.model(""); err == nil || !strings.Contains(err.Error(), "--model") {
		t.Errorf("no model: %v", err)
	}
	p, _ = c.provider("kimi")
	if m, err := p.model(p.Default); err != nil || m.Provider != "kimi" || !m.Kimi {
		t.Errorf("kimi: %+v %v", m, err)
	}
}

func TestClampReasoning(t *testing.T) {
	levels := func(names ...string) map[string]string {
		m := map[string]string{}
		for _, n := range names {
			m[n] = n
		}
		return m
	}
	for _, c := range []struct {
		levels     map[string]string
		level, got string
	}{
		{nil, "high", ""},
		{levels("low", "high"), "low", "low"},
		{levels("low", "high"), "medium", "low"},
		{levels("low", "high"), "max", "high"},
		{levels("low", "high"), "off", "low"},
		{levels("off", "high"), "medium", "off"},
		{levels("high"), "minimal", "high"},
		{levels("low"), "", ""},
	} {
		if got := (&Model{Levels: c.levels}).clamp(c.level); got != c.got {
			t.Errorf("%v %q: %q, want %q", c.levels, c.level, got, c.got)
		}
	}
}

func TestCost(t *testing.T) {
	m := &Model{Price: Price{1, 10, 0.1, 2}, Above: &tier{1000, Price{2, 20, 0.2, 4}}}
	for _, c := range []struct {
		u    Usage
		want Cost
	}{
		{Usage{Input: 500, Output: 100, CacheRead: 400, CacheWrite: 100}, Cost{0.0005, 0.001, 0.00004, 0.0002, 0.00174}},
		{Usage{Input: 501, Output: 100, CacheRead: 400, CacheWrite: 100}, Cost{0.001002, 0.002, 0.00008, 0.0004, 0.003482}},
	} {
		if got := m.cost(&c.u); fmt.Sprintf("%.9f", got) != fmt.Sprintf("%.9f", c.want) {
			t.Errorf("%+v: %+v, want %+v", c.u, got, c.want)
		}
	}
}

// writeHome makes a home directory with one file.
func writeHome(t *testing.T, name, text string) string {
	t.Helper()
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return home
}

func TestUserModels(t *testing.T) {
	c, err := loadCatalog(writeHome(t, "models.json", `{"providers": {
		"openai": {"models": [
			{"id": "gpt-5.4", "contextWindow": 1000, "priceCacheRead": 0},
			{"id": "o3", "reasoning": false, "vision": false},
			{"id": "mine", "name": "My model", "reasoning": true, "maxTokens": 50, "priceInput": 1.5},
			{"id": "levels", "levels": {"minimum": "little", "high": "much"}}]},
		"gateway": {"api": "anthropic-messages", "baseUrl": "https://gateway.example/v1", "apiKeyEnv": "GATEWAY_KEY",
			"models": [{"id": "a"}, {"id": "b", "baseUrl": "https://other.example"}]},
		"xai": {"baseUrl": "https://proxy.example/v1"},
		"own": {"baseUrl": "http://localhost:9/v1"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	get := func(provider, id string) Model {
		t.Helper()
		p, err := c.provider(provider)
		if err != nil {
			t.Fatal(err)
		}
		m, err := p.model(id)
		if err != nil {
			t.Fatal(err)
		}
		return *m
	}
	if m := get("openai", "gpt-5.4"); m.ContextWindow != 1000 || m.MaxOutput != 128000 || m.Price.CacheRead != 0 || m.Price.Input != 2.5 || len(m.Levels) == 0 {
		t.Errorf("a changed model: %+v", m)
	}
	if m := get("openai", "o3"); m.Levels != nil || m.Vision {
		t.Errorf("reasoning switched off: %+v", m)
	}
	if m := get("openai", "mine"); m.Name != "My model" || m.API != "openai-responses" || m.BaseURL != "https://api.openai.com/v1" ||
		m.MaxOutput != 50 || m.Levels["high"] != "high" || m.Price.Input != 1.5 || !m.Vision {
		t.Errorf("a new model: %+v", m)
	}
	if m := get("openai", "levels"); !maps.Equal(m.Levels, map[string]string{"minimal": "little", "high": "much"}) {
		t.Errorf("a model's own levels: %+v", m)
	}
	if m := get("gateway", "a"); m.API != "anthropic-messages" || m.BaseURL != "https://gateway.example/v1" || m.Name != "a" {
		t.Errorf("a new provider: %+v", m)
	}
	if m := get("gateway", "b"); m.BaseURL != "https://other.example" {
		t.Errorf("a model's own address: %+v", m)
	}
	if p, _ := c.provider("gateway"); p.Default != "a" || p.APIKeyEnv != "GATEWAY_KEY" {
		t.Errorf("a new provider: %+v", p)
	}
	if m := get("xai", "grok-4.5"); m.BaseURL != "https://proxy.example/v1" || m.API != "openai-responses" {
		t.Errorf("a provider's new address: %+v", m)
	}
	if p, _ := c.provider("own"); p.API != "openai-completions" {
		t.Errorf("a provider without an api: %+v", p)
	}
}

func TestUserModelsErrors(t *testing.T) {
	for _, c := range []struct{ file, want string }{
		{"", "models.json:1:1: unexpected end"},
		{"{\n \"providers\": {,}}", "models.json:2:16: invalid character ','"},
		{"[]", "models.json:1:1: a value of type array does not belong here"},
		{"{\"providers\": {\n\"x\": {\"models\": {}}}}", "models.json:2:17: a value of type object"},
		{"{\"providers\": {\n\"openai\": {\"models\": [{\"id\": 7}]}}}", "models.json:2:30: a value of type number"},
		{`{"providers": {"x": {"api": "grpc", "baseUrl": "http://x"}}}`, `provider "x": "api" must be anthropic-messages`},
		{`{"providers": {"x": {}}}`, `provider "x" has no "baseUrl"`},
		{`{"providers": {"openai": {"models": [{"id": "a", "priceOutput": -1}]}}}`, `provider "openai": model "a": -1 is no price`},
		{`{"providers": {"openai": {"models": [{"id": "a", "levels": {"hihg": "high"}}]}}}`, `provider "openai": model "a": "levels": unknown reasoning level "hihg"`},
		{`{"providers": {"openai": {"models": [{"id": "a"}, {"name": "b"}]}}}`, `provider "openai": models[1] has no "id"`},
	} {
		_, err := loadCatalog(writeHome(t, "models.json", c.file))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.file, err, c.want)
		}
	}
	home := t.TempDir()
	if err := os.Mkdir(filepath.Join(home, "models.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := loadCatalog(home); err == nil || !strings.Contains(err.Error(), "models.json") {
		t.Errorf("a directory: %v", err)
	}
}

func TestCredential(t *testing.T) {
	p := &providerInfo{Name: "gateway", API: "openai-completions", BaseURL: "https://gateway.example", APIKeyEnv: "ZOT_TEST_A,ZOT_TEST_B"}
	home := writeHome(t, "auth.json", `{"gateway": {"api_key": "from-file"}, "other": {"api_key": "x"}}`)
	get := func(p *providerInfo, flag, home, want string) {
		t.Helper()
		if key, err := credential(p, flag, home); key != want || err != nil {
			t.Errorf("%q %v, want %q", key, err, want)
		}
	}
	t.Setenv("ZOT_TEST_A", "")
	get(p, "", home, "from-file")
	t.Setenv("ZOT_TEST_B", "from-b")
	get(p, "", home, "from-b")
	t.Setenv("ZOT_TEST_A", "from-a")
	get(p, "", home, "from-a")
	get(p, "from-flag", home, "from-flag")
	for _, base := range []string{"http://localhost:1/v1", "http://127.0.0.1:1", "http://[::1]:1/v1"} {
		get(&providerInfo{Name: "local", BaseURL: base}, "", home, "")
	}
	get(&providerInfo{Name: "script", API: "script"}, "", home, "")

	fails := func(p *providerInfo, home string, want ...string) {
		t.Helper()
		_, err := credential(p, "", home)
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%v, want %q", err, w)
			}
		}
		if err != nil && strings.Contains(err.Error(), "sk-") {
			t.Errorf("the error shows a key: %v", err)
		}
	}
	p = &providerInfo{Name: "gateway", BaseURL: "https://gateway.example", APIKeyEnv: "ZOT_TEST_C,ZOT_TEST_D"}
	fails(p, t.TempDir(), "gateway", "set ZOT_TEST_C or ZOT_TEST_D", "auth.json", `{"gateway": {"api_key": "..."}}`)
	p.APIKeyEnv = ""
	fails(p, t.TempDir(), "put it into ", "auth.json")
	fails(p, writeHome(t, "auth.json", "{\n\"gateway\": \"sk-secret\"}"), "auth.json:2:22: a value of type string")
	fails(p, writeHome(t, "auth.json", "{\n\"gateway\": {\"api_key\": \"sk-secret\",}}"), "auth.json:2:36: invalid character")
}

func TestOverflowIsRecognized(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
	}{
		{400, `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 213462 tokens > 200000 maximum"}}`},                                                             // Anthropic
		{400, `{"type":"error","error":{"type":"invalid_request_error","message":"input length and max_tokens exceed context limit: 188240 + 21333 > 200000, decrease input length and try again"}}`}, // Anthropic
		{413, `{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}`},                                                                                   // Anthropic
		{400, `{"error":{"message":"Your input exceeds the context window of this model. Please adjust your input and try again.","type":"invalid_request_error","code":"context_length_exceeded"}}`}, // OpenAI
		{400, `{"error":{"message":"This model's maximum context length is 128000 tokens. However, your messages resulted in 130001 tokens.","type":"invalid_request_error","param":"messages"}}`},    // OpenAI, DeepSeek, vLLM
		{400, `{"error":{"message":"Invalid 'input': string too long. Expected a string with maximum length 10485760, but got a string with length 20000000 instead."}}`},                             // OpenAI
		{400, `[{"error":{"code":400,"message":"The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).","status":"INVALID_ARGUMENT"}}]`},                             // Google
		{400, `{"code":"Client specified an invalid argument","error":"This model's maximum prompt length is 131072 but the request contains 537812 tokens."}`},                                       // xAI
		{400, `{"error":{"message":"Please reduce the length of the messages or completion.","type":"invalid_request_error","code":"context_length_exceeded"}}`},                                      // Groq
		{400, `{"error":{"message":"This endpoint's maximum context length is 4096 tokens. However, you requested about 5000 tokens","code":400}}`},                                                   // OpenRouter
		{400, `{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"detail\":\"The input is too long for this model\"}"}}}`},                                                // OpenRouter
		{400, `{"object":"error","message":"Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length","type":"invalid_request_prompt"}`},                // Mistral
		{422, `{"error":{"message":"Input validation error: ` + "`inputs` tokens + `max_new_tokens`" + ` must be <= 8193. Given: 9000 inputs tokens","type":"invalid_request_error"}}`},               // Together
		{400, `{"error":{"code":400,"message":"request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it","type":"exceed_context_size_error"}}`},                      // llama.cpp
		{500, `{"error":{"code":500,"message":"context size exceeded","type":"server_error"}}`},                                                                                                       // llama.cpp
		{400, `{"error":"The number of tokens to keep from the initial prompt is greater than the context length. Try to load the model with a larger context length"}`},                              // LM Studio
		{400, `{"error":"Trying to keep the first 4690 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens"}`},                                    // LM Studio
		{400, `{"error":{"message":"prompt too long; exceeded max context length by 1 tokens"}}`},                                                                                                     // Ollama
		{400, `{"error":{"message":"Invalid request: Your request exceeded model token limit: 262144 (requested: 272144)","type":"invalid_request_error"}}`},                                          // Moonshot
		{400, `{"message":"Please reduce the length of the messages or completion. Current length is 70000 while limit is 65536","type":"invalid_request_error","code":"context_length_exceeded"}`},   // Cerebras
		{400, `{"error":{"code":"1261","message":"Prompt exceeds max length"}}`},                                                                                                                      // Z.ai
		{400, `{"error":{"message":"prompt token count of 130000 exceeds the limit of 128000","code":"model_max_prompt_tokens_exceeded"}}`},                                                           // GitHub Copilot
		{400, `{"object":"error","message":"The input (9000 tokens) is longer than the model's context length (8192 tokens).","type":"BadRequestError","code":400}`},                                  // SGLang
		{400, `{"message":"Input is too long for requested model."}`},                                                                                                                                 // Bedrock
		{400, `{"error":{"message":"invalid params, context window exceeds limit (2013)","type":"bad_request_error"}}`},                                                                               // MiniMax
		{413, ``}, // anyone
	} {
		if pe := httpError(c.status, http.Header{}, []byte(c.body)); !pe.overflow || pe.retry {
			t.Errorf("overflow %v, retry %v: %s", pe.overflow, pe.retry, pe.message)
		}
		if pe := streamError([]byte(c.body)); c.body != "" && c.status != 413 && !pe.overflow {
			t.Errorf("not an overflow inside a stream: %s", pe.message)
		}
	}
}

func TestOtherErrorsAreJudged(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		want   string // of retry, overflow, badImage
	}{
		{429, `{"error":{"message":"Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000. Please try again in 1.2s.","type":"tokens","code":"rate_limit_exceeded"}}`, "retry"},
		{429, `{"error":{"message":"Rate limit reached for model llama. Please try again in 7m12.5s. Need more tokens? Upgrade at https://console.groq.com/settings/billing","type":"tokens"}}`, "retry"},
		{429, `{"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed your organization's rate limit of 40,000 input tokens per minute, context included"}}`, "retry"},
		{429, `[{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details. Please retry in 23.4s.","status":"RESOURCE_EXHAUSTED"}}]`, "retry"},
		{429, `too many tokens`, "retry"},
		{503, `no healthy upstream`, "retry"},
		{529, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`, "retry"},
		{409, `{"error":{"message":"locked"}}`, "retry"},
		{408, ``, "retry"},
		{500, `{}`, "retry"},
		{502, `<html>`, "retry"},
		{504, ``, "retry"},
		{0, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`, "retry"},
		{0, `{"error":{"code":502,"message":"Provider returned error"}}`, "retry"},
		{0, `{"error":{"code":429,"message":"slow down"}}`, "retry"},
		{0, `{"type":"error","error":{"type":"api_error","message":"Internal server error"}}`, "retry"},
		{0, `{"code":"server_error","message":"x"}`, "retry"},
		{429, `{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","code":"insufficient_quota"}}`, ""},
		{429, `{"error":{"message":"Request too large for gpt-4o on tokens per min (TPM): Limit 1, Requested 30. The input or output tokens must be reduced in order to run successfully.","type":"tokens","code":"rate_limit_exceeded"}}`, ""},
		{429, `{"error":{"type":"exceeded_current_quota_error","message":"Your account is suspended"}}`, ""},
		{400, `{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API."}}`, ""},
		{402, `{"error":{"message":"Insufficient Balance"}}`, ""},
		{402, `{"error":{"message":"try again in 5s"}}`, ""},
		{400, `{"error":{"message":"max_tokens must be <= 8192"}}`, ""},
		{400, `{"error":{"message":"Invalid 'input[2].call_id': string too long. Expected a string with maximum length 64"}}`, ""},
		{401, `{"error":{"message":"bad key"}}`, ""},
		{403, ``, ""},
		{404, `{"error":{"message":"no such model"}}`, ""},
		{422, `{"detail":[{"msg":"bad"}]}`, ""},
		{0, `{"error":{"type":"invalid_request_error","message":"no"}}`, ""},
		{400, `{"error":{"message":"messages.1.content.0.image.source.base64: image exceeds 5 MB maximum"}}`, "badImage"},
		{404, `{"error":{"message":"No endpoints found that support image input","code":404}}`, "badImage"},
		{500, `{"error":{"message":"image input is not supported - hint: you may need to provide the mmproj"}}`, "badImage"},
		{429, `{"error":{"message":"too many images"}}`, "retry"},
	} {
		pe := streamError([]byte(c.body))
		if c.status != 0 {
			pe = httpError(c.status, http.Header{}, []byte(c.body))
		}
		got := ""
		for _, flag := range []struct {
			name string
			set  bool
		}{{"retry", pe.retry}, {"overflow", pe.overflow}, {"badImage", pe.badImage}} {
			if flag.set {
				got += flag.name
			}
		}
		if got != c.want || c.status != 0 && pe.status != c.status {
			t.Errorf("%d %s: %q, want %q", c.status, c.body, got, c.want)
		}
	}
}

func TestErrorText(t *testing.T) {
	for _, c := range []struct {
		status     int
		body, want string
	}{
		{401, `{"error":{"message":"Incorrect API key","type":"invalid_request_error","code":"invalid_api_key"}}`, "401 Unauthorized: invalid_request_error, invalid_api_key: Incorrect API key (request req_7)"},
		{429, `{"type":"error","error":{"type":"rate_limit_error","message":"Slow down"}}`, "429 Too Many Requests: rate_limit_error: Slow down (request req_7)"},
		{400, `[{"error":{"code":400,"message":"Bad","status":"INVALID_ARGUMENT"}}]`, "400 Bad Request: INVALID_ARGUMENT: Bad (request req_7)"},
		{502, `{"error":{"code":502,"message":"Provider returned error","metadata":{"raw":"upstream is down"}}}`, "502 Bad Gateway: Provider returned error: upstream is down (request req_7)"},
		{404, `{"error":"model not found"}`, "404 Not Found: model not found (request req_7)"},
		{422, `{"detail":"Field required"}`, "422 Unprocessable Entity: Field required (request req_7)"},
		{422, `{"detail":[{"msg":"Field required"}]}`, `422 Unprocessable Entity: {"detail":[{"msg":"Field required"}]} (request req_7)`},
		{500, " Internal\n", "500 Internal Server Error: Internal (request req_7)"},
		{529, "", "529 (request req_7)"},
		{400, `{"error":{"type":7,"message":{"no":"text"}}}`, `400 Bad Request: {"error":{"type":7,"message":{"no":"text"}}} (request req_7)`},
		{400, `[]`, "400 Bad Request: [] (request req_7)"},
	} {
		if pe := httpError(c.status, http.Header{"X-Request-Id": {"req_7"}}, []byte(c.body)); pe.message != c.want {
			t.Errorf("%s\nwant %s", pe.message, c.want)
		}
	}
	if pe := classify(0, "", ""); pe.message != "the server reported an error without a text" {
		t.Error(pe.message)
	}
}

func TestRetryAfter(t *testing.T) {
	soon := time.Now().Add(90 * time.Second).UTC().Format(http.TimeFormat)
	past := time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat)
	for _, c := range []struct {
		ms, after, message string
		low, high          time.Duration
	}{
		{"", "3", "", 3 * time.Second, 3 * time.Second},
		{"", "0.5", "", 500 * time.Millisecond, 500 * time.Millisecond},
		{"250", "3", "", 250 * time.Millisecond, 250 * time.Millisecond},
		{"", soon, "", 85 * time.Second, 90 * time.Second},
		{"", past, "", 1, time.Second},
		{"", "", "Please try again in 1.2s. Visit", 1200 * time.Millisecond, 1200 * time.Millisecond},
		{"", "", "Please try again in 20ms.", 20 * time.Millisecond, 20 * time.Millisecond},
		{"", "", "try again in 7m12.5s. Need", 432500 * time.Millisecond, 432500 * time.Millisecond},
		{"", "", "Please retry after 20 seconds.", 20 * time.Second, 20 * time.Second},
		{"", "", "Please retry in 1h2m.", 62 * time.Minute, 62 * time.Minute},
		{"", "", "Retry after 2 minutes", 2 * time.Minute, 2 * time.Minute},
		{"", "4", "try again in 9s", 4 * time.Second, 4 * time.Second},
		{"soon", "later", "try again in a while", 0, 0},
		{"-1", "-1", "", 0, 0},
		{"", "1e300", "", time.Hour, 1e8 * time.Second},
		{"NaN", "NaN", "", 0, 0},
	} {
		h := http.Header{}
		h.Set("Retry-After-Ms", c.ms)
		h.Set("Retry-After", c.after)
		body := encode(map[string]any{"error": map[string]string{"message": c.message}})
		if got := httpError(429, h, body).retryAfter; got < c.low || got > c.high {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if pe := classify(0, "rate_limit_exceeded", "try again in 2s"); pe.retryAfter != 2*time.Second {
		t.Errorf("inside a stream: %v", pe.retryAfter)
	}
}

func TestErrorsDoNotShowTheKey(t *testing.T) {
	d := newDouble(t, answer{status: 401, header: map[string]string{"X-Request-Id": "req_1"}, body: `{"error":{"message":"Incorrect API key provided: sk-secret."}}`})
	m := catalogModel(t, "openai", "gpt-5.4", d.URL)
	_, _, err := callModel(t, &request{model: m, messages: []*Message{userText("hi")}})
	if err == nil || err.Error() != "401 Unauthorized: Incorrect API key provided: [key]. (request req_1)" {
		t.Errorf("%v", err)
	}
	if got := d.requests[0].Header.Get("Authorization"); got != "Bearer sk-secret" {
		t.Errorf("Authorization %q", got)
	}
}

func TestBadBaseURL(t *testing.T) {
	for _, base := range []string{"api.example/v1", "", "http://[::1", "ht tp://x"} {
		m := catalogModel(t, "openai", "gpt-5.4", base)
		_, _, err := callModel(t, &request{model: m, messages: []*Message{userText("hi")}})
		if err == nil || !strings.Contains(err.Error(), "--base-url") || err.(*providerError).retry {
			t.Errorf("%q: %v", base, err)
		}
	}
}

const okStream = `data: {"type":"response.output_text.delta","output_index":0,"delta":"ok"}

data: {"type":"response.completed","response":{"status":"completed"}}

`

func TestRedirects(t *testing.T) {
	other := newDouble(t, answer{body: okStream})
	for _, c := range []struct {
		status       int
		location     string
		want         string // in the error; "" for success
		others, sent int
	}{
		{307, "/v2/responses", "", 0, 2},
		{308, "/v2/responses", "", 0, 2},
		{307, other.URL + "/responses", "redirects to " + other.URL, 0, 1},
		{302, "/v2/responses", "redirects to", 0, 1}, // would become a GET
	} {
		d := newDouble(t, answer{status: c.status, header: map[string]string{"Location": c.location}}, answer{body: okStream})
		m := catalogModel(t, "openai", "gpt-5.4", d.URL)
		msg, _, err := callModel(t, &request{model: m, messages: []*Message{userText("hi")}})
		if c.want == "" {
			if err != nil || messageText(msg, "text") != "ok" || d.requests[1].Header.Get("Authorization") != "Bearer sk-secret" || len(d.sent(1)) != len(d.sent(0)) {
				t.Errorf("%d %s: %v", c.status, c.location, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.want) || err.(*providerError).retry || strings.Contains(err.Error(), "sk-secret") {
			t.Errorf("%d %s: %v", c.status, c.location, err)
		}
		if d.count() != c.sent || other.count() != 0 {
			t.Errorf("%d %s: %d and %d requests", c.status, c.location, d.count(), other.count())
		}
	}
}

// lose ends a connection in the middle of an answer: with a reset, or by just
// closing it.
func lose(t *testing.T, w http.ResponseWriter, sent string, reset bool) {
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		t.Error(err)
		return
	}
	buf.WriteString(sent)
	buf.Flush()
	if reset {
		conn.(*net.TCPConn).SetLinger(0)
	}
	conn.Close()
}

func TestLostConnections(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	text := strings.SplitAfter(okStream, "\n\n")[0]
	half := head + fmt.Sprintf("%x\r\n%s\r\n", len(text), text)
	for _, c := range []struct {
		sent  string
		reset bool
		text  string
	}{
		{"", false, ""},
		{"", true, ""},
		{"HTTP/1.1 200 O", false, ""},
		{head, false, ""},
		{half, false, "ok"},
		{half + "10\r\ndata: {", false, "ok"},
		{half + "0\r\n\r\n", false, "ok"}, // ended properly, but not complete
	} {
		d := newDouble(t, answer{write: func(w http.ResponseWriter, _ *http.Request) { lose(t, w, c.sent, c.reset) }})
		m := catalogModel(t, "openai", "gpt-5.4", d.URL)
		msg, _, err := callModel(t, &request{model: m, messages: []*Message{userText("hi")}})
		var pe *providerError
		if !errors.As(err, &pe) || !pe.retry {
			t.Errorf("%q %v: %v", c.sent, c.reset, err)
		}
		if messageText(msg, "text") != c.text || msg.Stop != "" {
			t.Errorf("%q: %s", c.sent, encode(msg))
		}
		if d.count() != 1 {
			t.Errorf("%q: %d requests, the agent decides about retries", c.sent, d.count())
		}
	}
	d := newDouble(t)
	m := catalogModel(t, "openai", "gpt-5.4", d.URL)
	d.Close()
	_, _, err := callModel(t, &request{model: m, messages: []*Message{userText("hi")}})
	if err == nil || !err.(*providerError).retry || !strings.Contains(err.Error(), d.Listener.Addr().String()) {
		t.Errorf("refused: %v", err)
	}
}

func TestNetworkErrors(t *testing.T) {
	wrap := func(err error) error { return &url.Error{Op: "Post", URL: "https://x/?key=sk-secret", Err: err} }
	for _, c := range []struct {
		err   error
		retry bool
	}{
		{&net.OpError{Op: "read", Err: errors.New("connection reset by peer")}, true},
		{&net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "x", IsNotFound: true}}, false},
		{&net.OpError{Op: "dial", Err: &net.DNSError{Err: "server misbehaving", Name: "x", IsTemporary: true}}, true},
		{io.ErrUnexpectedEOF, true},
		{io.EOF, true},
		{errors.New("http: server closed idle connection"), true},
		{errors.New("http2: client connection lost"), true},
		{errors.New("stream error: stream ID 3; INTERNAL_ERROR; received from peer"), true},
		{errors.New("http2: server sent GOAWAY and closed the connection"), true},
		{errors.New("net/http: TLS handshake timeout"), true},
		{errors.New("tls: failed to verify certificate: x509: certificate signed by unknown authority"), false},
		{errors.New("http: server gave HTTP response to HTTPS client"), false},
	} {
		pe := networkError(wrap(c.err))
		if pe.retry != c.retry || strings.Contains(pe.message, "sk-secret") || pe.message == "" {
			t.Errorf("%v: retry %v: %s", c.err, pe.retry, pe.message)
		}
	}
}

func TestProviderAbort(t *testing.T) {
	arrived := make(chan bool, 1)
	for name, first := range map[string]string{"before headers": "", "in the stream": okStream[:strings.Index(okStream, "\n\n")+2]} {
		d := newDouble(t, answer{write: func(w http.ResponseWriter, r *http.Request) {
			if first != "" {
				io.WriteString(w, first)
				http.NewResponseController(w).Flush()
			} else {
				arrived <- true
			}
			<-r.Context().Done()
		}})
		m := catalogModel(t, "openai", "gpt-5.4", d.URL)
		p := newHTTPProvider(m, func() (string, error) { return "sk-secret", nil }, timeouts{})
		aborted := errors.New("aborted by the user")
		ctx, cancel := context.WithCancelCause(context.Background())
		go func() {
			<-arrived
			cancel(aborted)
		}()
		msg, err := p.call(ctx, &request{model: m, messages: []*Message{userText("hi")}}, func(d delta) {
			if d.phase == "delta" {
				arrived <- true
			}
		})
		if err != aborted || (messageText(msg, "text") == "ok") != (first != "") {
			t.Errorf("%s: %v, %q", name, err, messageText(msg, "text"))
		}
	}
}

func TestProviderNoKey(t *testing.T) {
	d := newDouble(t, answer{body: okStream})
	m := catalogModel(t, "openai", "gpt-5.4", d.URL)
	p := newHTTPProvider(m, func() (string, error) { return "", errors.New("no API key for provider openai") }, timeouts{})
	msg, err := p.call(context.Background(), &request{model: m}, func(delta) {})
	if msg == nil || err == nil || err.(*providerError).retry || err.Error() != "no API key for provider openai" || d.count() != 0 {
		t.Errorf("%v, %d requests", err, d.count())
	}
}

// remote is a provider whose base URL is not a loopback address, although all
// its connections go to the double.
func remote(t *testing.T, d *double, limits timeouts) (*httpProvider, *Model) {
	t.Helper()
	m := catalogModel(t, "openai", "gpt-5.4", "http://provider.example/v1")
	p := newHTTPProvider(m, func() (string, error) { return "sk-secret", nil }, limits)
	tr := p.client().Transport.(*http.Transport).Clone()
	p.client = func() *http.Client { return &http.Client{Transport: tr, CheckRedirect: sameHost} }
	tr.Proxy = nil
	tr.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, d.Listener.Addr().String())
	}
	return p, m
}

func TestProviderTimeLimits(t *testing.T) {
	const short = 0.05
	text := strings.SplitAfter(okStream, "\n\n")
	send := func(w http.ResponseWriter, s string) {
		io.WriteString(w, s)
		http.NewResponseController(w).Flush()
	}
	hang := func(r *http.Request) { <-r.Context().Done() }
	pings := func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			send(w, ": ping\n\n")
			send(w, "data: {\"type\":\"keepalive\"}\n\n")
			select {
			case <-r.Context().Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	for _, c := range []struct {
		name   string
		limits timeouts
		write  func(w http.ResponseWriter, r *http.Request)
		want   string // in the error; "" for success
	}{
		{"no headers", timeouts{Headers: short}, func(_ http.ResponseWriter, r *http.Request) { hang(r) }, "no answer from the server for 50ms"},
		{"headers only", timeouts{Headers: 20, FirstEvent: short}, func(w http.ResponseWriter, r *http.Request) { send(w, ""); hang(r) }, "accepted the request but sent nothing for 50ms"},
		{"pings only", timeouts{FirstEvent: short, Gap: 20}, func(w http.ResponseWriter, r *http.Request) { pings(w, r) }, "accepted the request but sent nothing for 50ms"},
		{"silence after text", timeouts{FirstEvent: 20, Gap: short}, func(w http.ResponseWriter, r *http.Request) { send(w, text[0]); hang(r) }, "stopped sending for 50ms"},
		{"pings after text", timeouts{FirstEvent: 20, Gap: short}, func(w http.ResponseWriter, r *http.Request) { send(w, text[0]); pings(w, r) }, "stopped sending for 50ms"},
		{"half an error", timeouts{Headers: short}, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			send(w, `{"error":{"message":"busy"`)
			hang(r)
		}, "503 Service Unavailable: {\"error\":"},
		{"slow but steady", timeouts{Headers: 20, FirstEvent: 20, Gap: 2}, func(w http.ResponseWriter, _ *http.Request) {
			for range 8 { // takes longer than the gap may
				send(w, text[0])
				time.Sleep(300 * time.Millisecond)
			}
			send(w, text[1])
		}, ""},
		{"no limits", timeouts{}, func(w http.ResponseWriter, _ *http.Request) { send(w, okStream) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := newDouble(t, answer{write: c.write})
			p, m := remote(t, d, c.limits)
			start := time.Now()
			_, err := p.call(context.Background(), &request{model: m, messages: []*Message{userText("hi")}}, func(delta) {})
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !err.(*providerError).retry) {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
		})
	}
}

// A local server may take its time to load a model, but not stop in the middle.
func TestProviderTimeLimitsOnLoopback(t *testing.T) {
	d := newDouble(t, answer{write: func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(60 * time.Millisecond) // more than both limits that do not apply
		w.WriteHeader(http.StatusOK)
		http.NewResponseController(w).Flush()
		time.Sleep(60 * time.Millisecond)
		io.WriteString(w, strings.SplitAfter(okStream, "\n\n")[0])
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}})
	m := catalogModel(t, "openai", "gpt-5.4", d.URL)
	p := newHTTPProvider(m, func() (string, error) { return "", nil }, timeouts{Headers: 0.02, FirstEvent: 0.02, Gap: 0.05})
	msg, err := p.call(context.Background(), &request{model: m, messages: []*Message{userText("hi")}}, func(delta) {})
	if err == nil || !strings.Contains(err.Error(), "stopped sending for 50ms") || messageText(msg, "text") != "ok" {
		t.Errorf("%v, %q", err, messageText(msg, "text"))
	}
}

// A reader of ours that is slow costs the server nothing, neither in pause nor
// between two reads.
func TestOurOwnWaitingDoesNotCount(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	r, w := io.Pipe()
	var paused atomic.Int32
	g := &guard{cancel: cancel, body: r, pause: func() {
		paused.Add(1)
		time.Sleep(120 * time.Millisecond)
	}}
	g.expect("the server stopped sending", 0.06)
	go func() {
		for range 3 {
			w.Write([]byte("x"))
		}
	}()
	for range 3 {
		if _, err := g.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(120 * time.Millisecond)
	}
	if ctx.Err() != nil || paused.Load() != 3 {
		t.Fatalf("%v after %d pauses", context.Cause(ctx), paused.Load())
	}
	context.AfterFunc(ctx, func() { w.CloseWithError(context.Cause(ctx)) })
	if _, err := g.Read(make([]byte, 1)); err == nil || err.Error() != "the server stopped sending for 60ms" {
		t.Errorf("a silent server: %v", err)
	}
}
