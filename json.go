// JSON as the protocols need it. Rules kept here:
//
//   - Everything written is one line of valid UTF-8 without U+2028 or U+2029,
//     because some clients split lines on those too; <, > and & stay readable,
//     because models and files see this text.
//   - Values that only pass through (ids, tool arguments, schemas) keep their
//     digits, key order and spelling, but are repaired to the rule above.
//   - Keys are matched exactly; encoding/json alone would ignore their case.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// object is a decoded JSON object whose values are still encoded.
type object map[string]json.RawMessage

// parseObject decodes one JSON object. The error says what was there instead.
func parseObject(data []byte) (object, error) {
	var o object
	if err := json.Unmarshal(data, &o); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return nil, fmt.Errorf("not JSON: %w (at byte %d)", err, syntax.Offset)
		}
		return nil, fmt.Errorf("not a JSON object but %s", kindOf(data))
	}
	if o == nil {
		return nil, errors.New("not a JSON object but null")
	}
	return o, nil
}

// has reports whether a key is present with a value other than null.
func (o object) has(key string) bool {
	v, ok := o[key]
	return ok && !bytes.Equal(v, []byte("null"))
}

// str returns a string value; absent and null are "".
func (o object) str(key string) (string, error) {
	var s string
	if o.has(key) {
		if err := json.Unmarshal(o[key], &s); err != nil {
			return "", fmt.Errorf("%q must be a string, not %s", key, kindOf(o[key]))
		}
	}
	return s, nil
}

// kindOf names the JSON type of a value for an error message.
func kindOf(v []byte) string {
	v = bytes.TrimLeft(v, " \t\r\n")
	if len(v) == 0 {
		return "nothing"
	}
	switch v[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

// encode marshals v by the rules of this file. Raw values inside v must have
// been through normalize. It panics on values that have no JSON form (NaN,
// channels): the callers encode structures of their own.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

const hexDigits = "0123456789abcdef"

// appendString appends s to dst as a JSON string. Invalid UTF-8 becomes U+FFFD.
func appendString[S string | []byte](dst []byte, s S) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			dst = append(dst, s[start:i]...)
			switch c {
			case '"', '\\':
				dst = append(dst, '\\', c)
			case '\n':
				dst = append(dst, '\\', 'n')
			case '\r':
				dst = append(dst, '\\', 'r')
			case '\t':
				dst = append(dst, '\\', 't')
			default:
				dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			}
			i++
			start = i
			continue
		}
		r, n := utf8.DecodeRuneInString(string(s[i:min(i+utf8.UTFMax, len(s))]))
		if (r == utf8.RuneError && n == 1) || r == '\u2028' || r == '\u2029' {
			dst = append(dst, s[start:i]...)
			dst = appendRune(dst, r)
			start = i + n
		}
		i += n
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// appendRune appends a rune inside a JSON string, separators escaped.
func appendRune(dst []byte, r rune) []byte {
	if r == '\u2028' || r == '\u2029' {
		return append(dst, '\\', 'u', '2', '0', '2', hexDigits[r&15])
	}
	return utf8.AppendRune(dst, r)
}

// normalize returns one JSON value compacted and repaired: bad UTF-8 and lone
// surrogate escapes become U+FFFD, line separators are escaped. Numbers, key
// order and all other escapes stay as they were.
func normalize(raw []byte) (json.RawMessage, error) {
	if !json.Valid(raw) {
		var v any
		return nil, json.Unmarshal(raw, &v)
	}
	dst := make([]byte, 0, len(raw))
	inString := false
	for i := 0; i < len(raw); {
		c := raw[i]
		switch {
		case c == '"':
			inString = !inString
		case !inString:
			if c == ' ' || c == '\t' || c == '\n' || c == '\r' {
				i++
				continue
			}
		case c == '\\' && raw[i+1] == 'u':
			r := hexRune(raw[i+2:])
			n := 6
			if utf16.IsSurrogate(r) {
				if i+11 < len(raw) && raw[i+6] == '\\' && raw[i+7] == 'u' &&
					utf16.DecodeRune(r, hexRune(raw[i+8:])) != utf8.RuneError {
					n = 12
				} else {
					dst = append(dst, "\ufffd"...)
					i += n
					continue
				}
			}
			dst = append(dst, raw[i:i+n]...)
			i += n
			continue
		case c == '\\':
			dst = append(dst, c, raw[i+1])
			i += 2
			continue
		case c >= utf8.RuneSelf:
			r, n := utf8.DecodeRune(raw[i:])
			dst = appendRune(dst, r)
			i += n
			continue
		}
		dst = append(dst, c)
		i++
	}
	return dst, nil
}

// hexRune reads four hex digits.
func hexRune(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		switch {
		case c <= '9':
			r = r<<4 | rune(c-'0')
		case c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			r = r<<4 | rune(c-'a'+10)
		}
	}
	return r
}
