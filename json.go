// JSON as the protocols need it. Rules kept here:
//
//   - Everything written is one line of valid UTF-8 without U+2028 or U+2029,
//     because some clients split lines on those too; <, > and & stay readable,
//     because models and files see this text.
//   - Values that only pass through (ids, tool arguments, schemas) keep their
//     digits, key order and spelling, but are repaired to the rule above.
//   - Keys are matched exactly; encoding/json alone would ignore their case.
//   - Events of providers are read in place, without building a tree. In them
//     nothing is sure: what is missing, null or of another type is nothing.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
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
	kinds := map[byte]string{'{': "an object", '[': "an array", '"': "a string", 't': "a boolean", 'f': "a boolean", 'n': "null"}
	return cmp.Or(kinds[v[0]], "a number")
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

// appendJSON appends a JSON text in which each ? stands for the next value: a
// string, bytes that are JSON already, or a number.
func appendJSON(dst []byte, template string, values ...any) []byte {
	for _, v := range values {
		before, after, _ := strings.Cut(template, "?")
		dst, template = append(dst, before...), after
		switch v := v.(type) {
		case string:
			dst = appendString(dst, v)
		case []byte:
			dst = append(dst, v...)
		case json.RawMessage:
			dst = append(dst, v...)
		default:
			dst = fmt.Append(dst, v)
		}
	}
	return append(dst, template...)
}

// appendList appends an array; each appends one element.
func appendList[T any](dst []byte, list []T, each func(dst []byte, v T) []byte) []byte {
	dst = append(dst, '[')
	for i, v := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = each(dst, v)
	}
	return append(dst, ']')
}

// appendString appends s to dst as a JSON string. Invalid UTF-8 becomes U+FFFD.
func appendString[S string | []byte](dst []byte, s S) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(string(s[i:min(i+utf8.UTFMax, len(s))]))
		if n > 1 && r != '\u2028' && r != '\u2029' {
			i += n
			continue
		}
		dst = append(dst, s[start:i]...)
		if k := strings.IndexByte("\n\r\t\"\\", c); k >= 0 {
			dst = append(dst, '\\', "nrt\"\\"[k])
		} else if r == utf8.RuneError {
			dst = append(dst, "\ufffd"...)
		} else {
			dst = append(dst, '\\', 'u', hex[r>>12], hex[r>>8&15], hex[r>>4&15], hex[r&15])
		}
		i += n
		start = i
	}
	return append(append(dst, s[start:]...), '"')
}

// escapes finds the escapes in a JSON string: surrogate pairs, lone surrogates
// (the only ones of six bytes), all others.
var escapes = lazyRegexp(`\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u[dD][89a-fA-F]..|\\.`)

// normalize returns one JSON value compacted and repaired: bad UTF-8 and lone
// surrogate escapes become U+FFFD, line separators are escaped. Numbers, key
// order and all other escapes stay as they were.
func normalize(raw []byte) (json.RawMessage, error) {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return nil, err
	}
	v := bytes.ToValidUTF8(b.Bytes(), []byte("\ufffd"))
	if bytes.Contains(v, []byte(`\u`)) {
		v = escapes().ReplaceAllFunc(v, func(escape []byte) []byte {
			if len(escape) == len(`\ud800`) {
				return []byte("\ufffd")
			}
			return escape
		})
	}
	v = bytes.ReplaceAll(v, []byte("\u2028"), []byte(`\u2028`))
	return bytes.ReplaceAll(v, []byte("\u2029"), []byte(`\u2029`)), nil
}

// merge adds the next piece of an object that is streamed: strings that grow
// get longer, other values are replaced.
func (o object) merge(piece []byte, grows func(key string) bool) {
	walk(piece, func(k, value []byte) {
		key := string(k)
		old := o[key]
		switch {
		case string(value) == "null":
		case value[0] == '"' && len(old) > 0 && old[0] == '"' && grows(key):
			o[key] = append(old[:len(old)-1], value[1:]...)
		default:
			o[key] = append(old[:0], value...)
		}
	})
}

// encode returns the merged object, without members that are no valid JSON.
func (o object) encode() []byte {
	for key, value := range o {
		if v, err := normalize(value); err == nil {
			o[key] = v
		} else {
			delete(o, key)
		}
	}
	return encode(o)
}

// textOf returns what a JSON string says, "" for any other value.
func textOf(v []byte) string {
	switch {
	case len(v) < 2 || v[0] != '"':
		return ""
	case bytes.IndexByte(v, '\\') < 0 && utf8.Valid(v):
		return string(v[1 : len(v)-1])
	}
	return string(appendText(make([]byte, 0, len(v)), v))
}

// appendText appends what a JSON string says, nothing for any other value.
func appendText(dst, v []byte) []byte {
	if len(v) < 2 || v[0] != '"' {
		return dst
	}
	start, s := len(dst), v[1:len(v)-1]
	if bytes.Contains(s, []byte(`\u`)) { // rare enough for the general decoder
		var decoded string
		if json.Unmarshal(v, &decoded) == nil {
			return append(dst, decoded...)
		}
	}
	for {
		i := bytes.IndexByte(s, '\\')
		if i < 0 || i+1 == len(s) {
			break
		}
		c := s[i+1]
		if k := strings.IndexByte("nrtbf", c); k >= 0 {
			c = "\n\r\t\b\f"[k]
		}
		dst = append(append(dst, s[:i]...), c)
		s = s[i+2:]
	}
	dst = append(dst, s...)
	if !utf8.Valid(dst[start:]) {
		dst = append(dst[:start], bytes.ToValidUTF8(dst[start:], []byte("\ufffd"))...)
	}
	return dst
}

// count reads a count or an index; what is none counts as 0.
func count(v []byte) int {
	n, err := strconv.ParseFloat(string(v), 64)
	if err != nil || !(n > 0 && n < 1e15) {
		return 0
	}
	return int(n)
}

// get returns the value at a path of member names, still encoded; nil where
// there is none.
func get(data []byte, path ...string) []byte {
	for _, name := range path {
		members, _ := pick(data, name)
		data = members[0]
	}
	return data
}

// pick returns up to nine named members of an object, still encoded; nil where
// absent or null. whole is false when data is not one complete JSON value.
func pick(data []byte, names ...string) (members [9][]byte, whole bool) {
	whole = walk(data, func(key, value []byte) {
		for i, name := range names {
			if string(key) == name && string(value) != "null" {
				members[i] = value
			}
		}
	})
	return members, whole
}

// walk calls f with each member of an object (the key as it stands between its
// quotes) or element of an array (no key), still encoded, and reports whether
// data is one complete JSON value. It takes numbers, literals and escapes on
// trust: values that are kept encoded must go through normalize.
func walk(data []byte, f func(key, value []byte)) bool {
	end := endOfJSON(data, skipSpace(data, 0), 0, f)
	return end >= 0 && skipSpace(data, end) == len(data)
}

// endOfJSON returns where the value at data[i] ends, -1 if it does not.
func endOfJSON(data []byte, i, depth int, f func(key, value []byte)) int {
	if i >= len(data) || depth > 1000 {
		return -1
	}
	open := data[i]
	switch open {
	case '"':
		return endOfString(data, i)
	case '{', '[':
	default:
		start := i
		for i < len(data) && isLiteral(data[i]) {
			i++
		}
		if i == start {
			return -1
		}
		return i
	}
	i = skipSpace(data, i+1)
	if i < len(data) && data[i] == open+2 { // } follows { by two in ASCII, ] follows [
		return i + 1
	}
	for {
		var key []byte
		if open == '{' {
			end := endOfString(data, i)
			if end < 0 {
				return -1
			}
			key = data[i+1 : end-1]
			i = skipSpace(data, end)
			if i >= len(data) || data[i] != ':' {
				return -1
			}
			i = skipSpace(data, i+1)
		}
		end := endOfJSON(data, i, depth+1, nil)
		if end < 0 {
			return -1
		}
		if f != nil {
			f(key, data[i:end])
		}
		i = skipSpace(data, end)
		switch {
		case i < len(data) && data[i] == open+2:
			return i + 1
		case i >= len(data) || data[i] != ',':
			return -1
		}
		i = skipSpace(data, i+1)
	}
}

// endOfString returns the index behind the string that starts at data[i], -1
// if there is none.
func endOfString(data []byte, i int) int {
	if i >= len(data) || data[i] != '"' {
		return -1
	}
	for start := i + 1; ; {
		n := bytes.IndexByte(data[i+1:], '"')
		if n < 0 {
			return -1
		}
		i += 1 + n
		escape := i // where the backslashes in front of the quote begin
		for escape > start && data[escape-1] == '\\' {
			escape--
		}
		if (i-escape)%2 == 0 {
			return i + 1
		}
	}
}

// isLiteral reports whether c occurs in numbers, true, false and null.
func isLiteral(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c == '-' || c == '+' || c == '.' || c == 'E'
}

func skipSpace(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\t' || data[i] == '\n' || data[i] == '\r') {
		i++
	}
	return i
}
