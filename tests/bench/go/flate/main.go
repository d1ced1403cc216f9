// Command flate does in Go what etcdmaint does in Python, to be judged by and measured against.
//
//	flate judge          frames on stdin, each behind its length (uint32, little endian);
//	                     on stdout one byte of verdict and the CRC-32C of the plaintext for each
//	flate bench FILE     objects in FILE, in the same form; one line of JSON a measurement asked
//	                     for on stdin ("encode N" or "decode N": N rounds over all objects)
//
// It frames as a writer of KEP-6264 would: compress/flate at level 1 with a writer that is reset, and
// hash/crc32 with the Castagnoli table.
package main

import (
	"bufio"
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"time"
)

const (
	header  = 9
	ceiling = 1507328
)

var (
	castagnoli     = crc32.MakeTable(crc32.Castagnoli)
	errChecksum    = errors.New("checksum")
	errUnsupported = errors.New("unsupported")
	errMalformed   = errors.New("malformed")
)

type codec struct {
	writer *flate.Writer
	reader io.ReadCloser
	out    bytes.Buffer
}

func newCodec() *codec {
	writer, err := flate.NewWriter(io.Discard, 1)
	if err != nil {
		panic(err)
	}
	return &codec{writer: writer, reader: flate.NewReader(bytes.NewReader(nil))}
}

func checksum(frame []byte) uint32 {
	return crc32.Update(crc32.Checksum(frame[:5], castagnoli), castagnoli, frame[header:])
}

func (c *codec) encode(plaintext []byte) []byte {
	c.out.Reset()
	c.out.Write([]byte{0, 'k', '8', 's', 1, 0, 0, 0, 0})
	var length [binary.MaxVarintLen64]byte
	c.out.Write(length[:binary.PutUvarint(length[:], uint64(len(plaintext)))])
	c.writer.Reset(&c.out)
	c.writer.Write(plaintext)
	c.writer.Close()
	frame := c.out.Bytes()
	if len(frame)-header >= len(plaintext) {
		frame = append(append(make([]byte, 0, header+len(plaintext)), 0, 'k', '8', 's', 0, 0, 0, 0, 0), plaintext...)
	} else {
		frame = append(make([]byte, 0, len(frame)), frame...)
	}
	binary.LittleEndian.PutUint32(frame[5:], checksum(frame))
	return frame
}

func (c *codec) decode(frame []byte) ([]byte, error) {
	if len(frame) == 0 || frame[0] != 0 {
		return frame, nil
	}
	if len(frame) < header || binary.LittleEndian.Uint32(frame[5:]) != checksum(frame) {
		return nil, errChecksum
	}
	if frame[4] > 1 {
		return nil, errUnsupported
	}
	body := frame[header:]
	if string(frame[1:4]) != "k8s" {
		return nil, errMalformed
	}
	if frame[4] == 0 {
		if len(body) > ceiling {
			return nil, errMalformed
		}
		return append(make([]byte, 0, len(body)), body...), nil
	}
	declared, width := binary.Uvarint(body)
	if width <= 0 || declared == 0 || declared > ceiling {
		return nil, errMalformed
	}
	c.reader.(flate.Resetter).Reset(bytes.NewReader(body[width:]), nil)
	plaintext := make([]byte, declared)
	if _, err := io.ReadFull(c.reader, plaintext); err != nil {
		return nil, errMalformed
	}
	var beyond [1]byte
	for {
		n, err := c.reader.Read(beyond[:])
		if n != 0 {
			return nil, errMalformed
		}
		if err == io.EOF {
			return plaintext, nil
		}
		if err != nil {
			return nil, errMalformed
		}
	}
}

func read(from io.Reader) ([][]byte, error) {
	var all [][]byte
	for {
		value, err := next(from)
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, value)
	}
}

func next(from io.Reader) ([]byte, error) {
	var length uint32
	if err := binary.Read(from, binary.LittleEndian, &length); err != nil {
		return nil, err
	}
	value := make([]byte, length)
	_, err := io.ReadFull(from, value)
	return value, err
}

func judge(from io.Reader, to *bufio.Writer) error {
	c := newCodec()
	for {
		frame, err := next(from)
		if err == io.EOF {
			return to.Flush()
		}
		if err != nil {
			return err
		}
		plaintext, err := c.decode(frame)
		verdict := map[error]byte{nil: 'o', errChecksum: 'c', errUnsupported: 'u', errMalformed: 'm'}[err]
		to.WriteByte(verdict)
		binary.Write(to, binary.LittleEndian, crc32.Checksum(plaintext, castagnoli))
	}
}

func bench(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	objects, err := read(bufio.NewReader(file))
	if err != nil {
		return err
	}
	c := newCodec()
	frames := make([][]byte, len(objects))
	plain, stored := 0, 0
	for i, object := range objects {
		frames[i] = c.encode(object)
		plain += len(object)
		stored += len(frames[i])
	}
	fmt.Printf("{\"plain\": %d, \"stored\": %d}\n", plain, stored)
	var operation string
	var rounds int
	for {
		if _, err := fmt.Scanln(&operation, &rounds); err != nil {
			return nil
		}
		start := time.Now()
		for range rounds {
			for i := range objects {
				if operation == "encode" {
					c.encode(objects[i])
				} else if _, err := c.decode(frames[i]); err != nil {
					return err
				}
			}
		}
		fmt.Printf("{\"seconds\": %.9f}\n", time.Since(start).Seconds())
	}
}

func main() {
	var err error
	switch {
	case len(os.Args) == 2 && os.Args[1] == "judge":
		err = judge(bufio.NewReaderSize(os.Stdin, 1<<20), bufio.NewWriter(os.Stdout))
	case len(os.Args) == 3 && os.Args[1] == "bench":
		err = bench(os.Args[2])
	default:
		err = errors.New("usage: flate judge | flate bench FILE")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
