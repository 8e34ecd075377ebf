// Images on their way to a model. Rules kept here:
//
//   - An image that a provider would refuse would make it refuse every later
//     request too. So nothing passes that was not checked by its content: the
//     kind, the pixels, that it is complete, the encoded size.
//   - The header is looked at before memory is spent on the pixels.
package main

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/draw"
	_ "image/gif" // registers its decoder
	"image/jpeg"
	"image/png"
	"net/http"
	"slices"
	"sync"
)

const (
	imageSide   = 2000            // pixels on the longer side: Anthropic's limit when there are many images
	imageBytes  = 5 << 20 / 4 * 3 // 5 MiB in base64
	imagePixels = 32_000_000      // an image with more is not decoded
)

// decoding is held while an image is in memory pixel by pixel: a few hundred
// MiB at the most, and only once.
var decoding sync.Mutex

// prepareImage returns an image block that providers accept, made smaller if
// need be, or an error that says what is wrong with the image.
func prepareImage(data []byte) (Block, error) {
	kind, width, height, err := imageHeader(data)
	if err != nil {
		return Block{}, err
	}
	fits := max(width, height) <= imageSide && len(data) <= imageBytes
	switch {
	case kind == "webp" && fits:
		return imageBlock(kind, data), nil
	case kind == "webp", int64(width)*int64(height) > imagePixels:
		return Block{}, fmt.Errorf("the %s image is too large: %dx%d pixels, %d bytes; the limit is %d million pixels, and for WebP, which is not made smaller here, %d pixels a side and %d bytes",
			kind, width, height, len(data), imagePixels/1_000_000, imageSide, imageBytes)
	}
	decoding.Lock()
	defer decoding.Unlock()
	img, _, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		return Block{}, fmt.Errorf("the %s image is damaged or incomplete: %w", kind, err)
	}
	if fits {
		return imageBlock(kind, data), nil
	}
	rgba := image.NewRGBA(image.Rect(0, 0, img.Bounds().Dx(), img.Bounds().Dy()))
	draw.Draw(rgba, rgba.Rect, img, img.Bounds().Min, draw.Src)
	// Smaller and smaller until it fits; a side of 1 pixel always does.
	for side := min(imageSide, max(width, height)); ; side = side * 3 / 4 {
		var out bytes.Buffer
		if kind == "jpeg" {
			err = jpeg.Encode(&out, shrink(rgba, side), &jpeg.Options{Quality: 85})
		} else {
			kind, err = "png", png.Encode(&out, shrink(rgba, side))
		}
		if err != nil {
			return Block{}, fmt.Errorf("could not encode the smaller image: %w", err)
		}
		if smaller := withOrientation(out.Bytes(), data); len(smaller) <= imageBytes {
			return imageBlock(kind, smaller), nil
		}
	}
}

func imageBlock(kind string, data []byte) Block {
	return Block{Type: "image", MimeType: "image/" + kind, Data: base64.StdEncoding.EncodeToString(data)}
}

// imageKind tells the kind of an image by its first bytes; "" if it is none
// that models take.
func imageKind(data []byte) string {
	switch kind := http.DetectContentType(data); kind {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
		return kind[len("image/"):]
	}
	return ""
}

// imageHeader returns kind and size of an image without decoding it.
func imageHeader(data []byte) (kind string, width, height int, err error) {
	kind = imageKind(data)
	if kind == "" {
		return "", 0, 0, fmt.Errorf("not a PNG, JPEG, GIF or WebP image but %s", http.DetectContentType(data))
	}
	if kind == "webp" {
		width, height, err = webpSize(data)
	} else {
		var c image.Config
		c, _, err = image.DecodeConfig(bytes.NewReader(data))
		width, height = c.Width, c.Height
	}
	if err == nil && (width <= 0 || height <= 0) {
		err = errors.New("it has no pixels")
	}
	if err != nil {
		err = fmt.Errorf("the %s image is damaged or incomplete: %w", kind, err)
	}
	return kind, width, height, err
}

// webpSize reads the size from the first chunk (RFC 9649): lossy, lossless or
// extended.
func webpSize(data []byte) (width, height int, err error) {
	if len(data) < 30 || int64(binary.LittleEndian.Uint32(data[4:]))+8 > int64(len(data)) {
		return 0, 0, errors.New("unexpected end of file")
	}
	u32 := func(at int) int { return int(binary.LittleEndian.Uint32(data[at:])) }
	switch kind := string(data[12:16]); {
	case kind == "VP8 " && string(data[23:26]) == "\x9d\x01\x2a":
		return u32(26) & 0x3fff, u32(26) >> 16 & 0x3fff, nil
	case kind == "VP8L" && data[20] == 0x2f:
		return u32(21)&0x3fff + 1, u32(21)>>14&0x3fff + 1, nil
	case kind == "VP8X":
		return u32(24)&0xffffff + 1, u32(26)>>8&0xffffff + 1, nil
	}
	return 0, 0, errors.New("unknown first chunk")
}

// shrink returns src with its longer side at most side pixels long. Each pixel
// is the mean of the area that it stands for.
func shrink(src *image.RGBA, side int) *image.RGBA {
	sw, sh := src.Rect.Dx(), src.Rect.Dy()
	longer := max(sw, sh)
	if longer <= side {
		return src
	}
	dw, dh := max(1, sw*side/longer), max(1, sh*side/longer)
	dst := image.NewRGBA(image.Rect(0, 0, dw, dh))
	for y := range dh {
		y0, y1 := y*sh/dh, (y+1)*sh/dh
		for x := range dw {
			x0, x1 := x*sw/dw, (x+1)*sw/dw
			var sum [4]int
			for sy := y0; sy < y1; sy++ {
				row := src.Pix[src.PixOffset(x0, sy):src.PixOffset(x1, sy)]
				for i, v := range row {
					sum[i&3] += int(v)
				}
			}
			area := (x1 - x0) * (y1 - y0)
			for i, v := range sum {
				dst.Pix[dst.PixOffset(x, y)+i] = uint8((v + area/2) / area)
			}
		}
	}
	return dst
}

// withOrientation copies the Exif segment of the JPEG old, which may say that
// the picture is turned, into the new one.
func withOrientation(jpg, old []byte) []byte {
	for i := 2; i+10 < len(old) && old[i] == 0xff; {
		end := i + 2 + int(binary.BigEndian.Uint16(old[i+2:]))
		if old[i+1] == 0xda || end > len(old) { // the picture itself
			break
		}
		if old[i+1] == 0xe1 && string(old[i+4:i+10]) == "Exif\x00\x00" {
			return slices.Insert(jpg, 2, old[i:end]...)
		}
		i = end
	}
	return jpg
}
