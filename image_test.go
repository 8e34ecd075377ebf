package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// picture is a picture of random colours, which hardly compresses, or of one
// colour.
func picture(w, h int, noisy bool) *image.RGBA {
	img := image.NewRGBA(image.Rect(0, 0, w, h))
	r := rand.NewPCG(1, 2)
	for i := range img.Pix {
		img.Pix[i] = 200
		if noisy {
			img.Pix[i] = byte(r.Uint64())
		}
		if i%4 == 3 {
			img.Pix[i] = 255
		}
	}
	return img
}

func pngOf(t *testing.T, img image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func jpegOf(t *testing.T, img image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := jpeg.Encode(&b, img, &jpeg.Options{Quality: 100}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gifOf(t *testing.T, img image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := gif.Encode(&b, img, nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// webpOf makes a file with one chunk, of which only the header is right.
func webpOf(kind string, w, h int) []byte {
	chunk := make([]byte, 30)
	switch kind {
	case "VP8 ":
		copy(chunk[3:], "\x9d\x01\x2a")
		binary.LittleEndian.PutUint16(chunk[6:], uint16(w))
		binary.LittleEndian.PutUint16(chunk[8:], uint16(h))
	case "VP8L":
		chunk[0] = 0x2f
		binary.LittleEndian.PutUint32(chunk[1:], uint32(w-1|(h-1)<<14))
	case "VP8X":
		binary.LittleEndian.PutUint32(chunk[4:], uint32(w-1))
		chunk[7], chunk[8], chunk[9] = byte(h-1), byte((h-1)>>8), byte((h-1)>>16)
	}
	file := append([]byte("RIFF\x00\x00\x00\x00WEBP"+kind), binary.LittleEndian.AppendUint32(nil, uint32(len(chunk)))...)
	file = append(file, chunk...)
	binary.LittleEndian.PutUint32(file[4:], uint32(len(file)-8))
	return file
}

// bombOf is the beginning of a PNG that claims to be huge.
func bombOf(w, h uint32) []byte {
	head := binary.BigEndian.AppendUint32([]byte("IHDR"), w)
	head = append(binary.BigEndian.AppendUint32(head, h), 8, 6, 0, 0, 0)
	file := append([]byte("\x89PNG\r\n\x1a\n\x00\x00\x00\x0d"), head...)
	return binary.BigEndian.AppendUint32(file, crc32.ChecksumIEEE(head))
}

func TestPrepareImage(t *testing.T) {
	small := picture(40, 30, true)
	largeJPEG := jpegOf(t, picture(1900, 1600, true))
	if len(largeJPEG) < 6_000_000 {
		t.Fatalf("the large JPEG has only %d bytes", len(largeJPEG))
	}
	for _, c := range []struct {
		name string
		data []byte
		mime string
		w, h int // 0: may be anything smaller
		same bool
	}{
		{"png", pngOf(t, small), "image/png", 40, 30, true},
		{"jpeg", jpegOf(t, small), "image/jpeg", 40, 30, true},
		{"gif", gifOf(t, small), "image/gif", 40, 30, true},
		{"webp lossy", webpOf("VP8 ", 40, 30), "image/webp", 40, 30, true},
		{"webp lossless", webpOf("VP8L", 400, 1300), "image/webp", 400, 1300, true},
		{"webp extended", webpOf("VP8X", 2000, 2000), "image/webp", 2000, 2000, true},
		{"wide png", pngOf(t, picture(9600, 100, false)), "image/png", 2000, 20, false},
		{"thin png", pngOf(t, picture(9600, 1, false)), "image/png", 2000, 1, false},
		{"square png", pngOf(t, picture(2100, 2100, false)), "image/png", 2000, 2000, false},
		{"tall gif", gifOf(t, picture(10, 2500, false)), "image/png", 8, 2000, false},
		{"large jpeg", largeJPEG, "image/jpeg", 1900, 1600, false},
		{"large png", pngOf(t, picture(1500, 1500, true)), "image/png", 0, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := prepareImage(c.data)
			if err != nil {
				t.Fatal(err)
			}
			data, err := base64.StdEncoding.DecodeString(b.Data)
			if err != nil {
				t.Fatal(err)
			}
			kind, w, h, err := imageHeader(data)
			if err != nil || b.Type != "image" || b.MimeType != c.mime || "image/"+kind != c.mime {
				t.Errorf("type %q, %q (%s), %v", b.Type, b.MimeType, kind, err)
			}
			if len(b.Data) > 5<<20 || max(w, h) > imageSide || c.w > 0 && (w != c.w || h != c.h) {
				t.Errorf("%dx%d, %d bytes encoded", w, h, len(b.Data))
			}
			if same := bytes.Equal(data, c.data); same != c.same {
				t.Errorf("unchanged: %v", same)
			}
		})
	}
}

func TestPrepareImageRefusals(t *testing.T) {
	small := picture(40, 30, true)
	cut := func(data []byte) []byte { return data[:len(data)-len(data)/4] }
	broken := slices.Clone(pngOf(t, small))
	broken[len(broken)/2] ^= 0xff
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"text", []byte("hello\n"), "not a PNG, JPEG, GIF or WebP image but text/plain"},
		{"nothing", nil, "not a PNG"},
		{"cut png", cut(pngOf(t, small)), "the png image is damaged or incomplete"},
		{"cut jpeg", cut(jpegOf(t, small)), "the jpeg image is damaged or incomplete"},
		{"cut gif", cut(gifOf(t, small)), "the gif image is damaged or incomplete"},
		{"cut webp", cut(webpOf("VP8X", 10, 10)), "the webp image is damaged or incomplete"},
		{"only magic", []byte("\x89PNG\r\n\x1a\n"), "damaged or incomplete"},
		{"broken png", broken, "damaged or incomplete"},
		{"large webp", webpOf("VP8L", 3000, 100), "too large: 3000x100 pixels"},
		{"unknown webp", webpOf("ABCD", 10, 10), "not a PNG, JPEG, GIF or WebP image"},
		{"bomb", bombOf(60_000, 60_000), "too large: 60000x60000 pixels"},
	} {
		if _, err := prepareImage(c.data); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
}

// The shrunk picture is the mean of the original, transparency included.
func TestShrink(t *testing.T) {
	src := image.NewRGBA(image.Rect(0, 0, 4, 2))
	for x := range 4 {
		src.SetRGBA(x, 0, color.RGBA{uint8(x * 10), 0, 0, 255})
		src.SetRGBA(x, 1, color.RGBA{0, 0, 0, 0})
	}
	got := shrink(src, 2)
	want := []uint8{3, 0, 0, 128, 13, 0, 0, 128}
	if got.Rect.Dx() != 2 || got.Rect.Dy() != 1 || !bytes.Equal(got.Pix, want) {
		t.Errorf("%v %v, want %v", got.Rect, got.Pix, want)
	}
}

func TestOrientationIsKept(t *testing.T) {
	exif := append([]byte("\xff\xe1\x00\x0cExif\x00\x00"), 1, 2, 3, 4)
	turned := slices.Insert(jpegOf(t, picture(2400, 30, false)), 2, exif...)
	b, err := prepareImage(turned)
	if err != nil {
		t.Fatal(err)
	}
	data, _ := base64.StdEncoding.DecodeString(b.Data)
	if !bytes.HasPrefix(data[2:], exif) {
		t.Errorf("no Exif segment: % x", data[:20])
	}
	if _, err := jpeg.Decode(bytes.NewReader(data)); err != nil {
		t.Error(err)
	}
}

func TestReadImage(t *testing.T) {
	dir := t.TempDir()
	putFile(t, filepath.Join(dir, "really-png.jpg"), string(pngOf(t, picture(20, 10, false))))
	putFile(t, filepath.Join(dir, "wide.png"), string(pngOf(t, picture(4000, 10, false))))
	putFile(t, filepath.Join(dir, "text.png"), "not found\n")
	putFile(t, filepath.Join(dir, "cut.png"), string(pngOf(t, picture(20, 10, true))[:200]))

	r := callTool(t, context.Background(), dir, "read", args{"path": "really-png.jpg"})
	if r.isError || len(r.content) != 2 || r.content[0].Text != "Read image file [image/png]" || r.content[1].Type != "image" || r.content[1].MimeType != "image/png" {
		t.Errorf("%+v", r)
	}
	r = callTool(t, context.Background(), dir, "read", args{"path": "wide.png"})
	if len(r.content) != 2 || r.content[0].Text != "Read image file [image/png], made smaller: 4000x10 pixels are shown as 2000x5" {
		t.Errorf("%s", resultText(r))
	}
	// The content counts, not the name: this is what the server answered.
	if got := succeed(t, dir, "read", args{"path": "text.png"}); got != "not found\n" {
		t.Errorf("%q", got)
	}
	wantHas(t, refuse(t, dir, "read", args{"path": "cut.png"}), "cut.png: the png image is damaged or incomplete")
}
