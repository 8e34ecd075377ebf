package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// walk agrees with encoding/json on what is one whole value.
func TestWalkJSON(t *testing.T) {
	for _, s := range []string{`{}`, `[]`, ` {"a" : [1, {"b":"}"}, "\\\""] , "c":null} `, `"x"`, `1`, `true`,
		``, ` `, `{`, `}`, `[1`, `{"a"}`, `{"a":}`, `{"a":1,}`, `[1,]`, `[,1]`, `{"a":1 "b":2}`, `{a:1}`, `{"a":"b`, `{"a":"\"}`, `[1]]`, `{"a":1]`, `1 2`,
		strings.Repeat("[", 100000)} {
		if got := walk([]byte(s), func(_, _ []byte) {}); got != json.Valid([]byte(s)) {
			t.Errorf("%.40q: %t", s, got)
		}
	}
}

func TestTextOf(t *testing.T) {
	for _, s := range []string{`""`, `"x"`, `"\"\\\/\b\f\n\r\t"`, `"\\\\\""`, `"é😀"`, "\"\u2028\"", `"\u00e9"`, `"\ud83d\ude00"`, `"\ud83d"`, "\"\xff\"", `"\u0041\n"`} {
		var want string
		if err := json.Unmarshal([]byte(s), &want); err != nil {
			t.Fatal(err)
		}
		if got := string(appendText([]byte("before"), []byte(s))); got != "before"+want {
			t.Errorf("%s: %q, want %q", s, got, want)
		}
	}
	for _, s := range []string{``, `"`, `1`, `null`, `{"a":"b"}`, `["a"]`} {
		if got := textOf([]byte(s)); got != "" {
			t.Errorf("%s is no string, but %q", s, got)
		}
	}
	for _, s := range []string{`"\x"`, `"\u12"`, `"\"`, "\"a\x01\"", `"\\\"`} { // no JSON, and no panic
		textOf([]byte(s))
	}
}

func TestObjectMerge(t *testing.T) {
	o := object{}
	for _, piece := range []string{`{"text":"a\ud83d","index":0,"id":"x"}`, `{"text":null,"signature":"s"}`, `{"text":"\ude00\n","id":"y","index":1,"bad":tru}`, `[]`, ``} {
		o.merge([]byte(piece), func(key string) bool { return key == "text" })
	}
	if got, want := string(o.encode()), `{"id":"y","index":1,"signature":"s","text":"a\ud83d\ude00\n"}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestAppendJSON(t *testing.T) {
	got := string(appendJSON([]byte("["), `{"a":?,"b":?,"c":?}`, "x\"?", []byte(`{"?":1}`), 7))
	if want := `[{"a":"x\"?","b":{"?":1},"c":7}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestNormalize(t *testing.T) {
	for in, want := range map[string]string{
		` { "b" : 1.0 , "a" : [ 12345678901234567890 , 1e400 ] } `: `{"b":1.0,"a":[12345678901234567890,1e400]}`,
		"\"\u2028 \u2029 <&> \xff\"":                               `"\u2028 \u2029 <&> ` + "\ufffd\"",
		`"\ud83d\ude00 \u00e9\/"`:                                  `"\ud83d\ude00 \u00e9\/"`,
		`"\ud83d \uDE00 \ud83d\u0041 \\ud83d"`:                     "\"\ufffd \ufffd \ufffd\\u0041 \\\\ud83d\"",
	} {
		if got, err := normalize([]byte(in)); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v, want %s", in, got, err, want)
		}
	}
	for _, in := range []string{``, `{`, `1 2`, `{"a":tru}`, `"\x"`} {
		if got, err := normalize([]byte(in)); err == nil {
			t.Errorf("%s: %s", in, got)
		}
	}
}

func TestAppendString(t *testing.T) {
	got := string(appendString(nil, "a\n\r\t\"\\\x00\x1b\u2028\u2029\xff\ufffdé😀<>\xe2\x80"))
	if want := `"a\n\r\t\"\\\u0000\u001b\u2028\u2029` + "\ufffd\ufffdé😀<>\ufffd\ufffd\""; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
