package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"math"
	"os"
	"slices"
)

// What follows checks the structure of a log file before bbolt maps it into memory.
// Beyond the end of a file that was cut the process would be killed, and over a bad
// page bbolt panics, in goroutines of its own too: neither can be caught. The check
// reads each page in use once, which opening the file does anyway.

// The file's format (bbolt, version 2), in the machine's byte order.
const (
	boltMagic      = 0xED0CDAED
	boltVersion    = 2
	boltNoFreelist = math.MaxUint64

	minPageBytes     = 1 << 10
	maxPageBytes     = 1 << 24
	pageHeaderBytes  = 16 // id, flags, count, overflow
	elementBytes     = 16 // of a leaf and of a branch
	metaBytes        = 64
	metaSummedBytes  = 56 // the checksum is the rest
	bucketHeadBytes  = 16 // root page, sequence
	branchPage       = 0x01
	leafPage         = 0x02
	freelistPage     = 0x10
	bucketElement    = 0x01
	longFreelistMark = 0xFFFF // the count is in the first element
)

var native = binary.NativeEndian

// checkLogFile returns ErrStoreFailed if a log file is damaged. It changes nothing. A
// file that is missing or empty is a new one.
func checkLogFile(path string) error { return measureLogFile(path, &logSize{}) }

// measureLogFile is checkLogFile, and counts the bytes of the entries.
func measureLogFile(path string, size *logSize) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	if info.Size() == 0 {
		return nil
	}
	check := logFileCheck{file: file, size: uint64(info.Size()), entries: size}
	if err := check.run(); err != nil {
		return damagedLog(path, err)
	}
	return nil
}

// damagedLog says what to do about a damaged log file.
func damagedLog(path string, reason any) error {
	return fmt.Errorf("%w: %s is damaged: %v; set the data directory aside and let the replica join anew", ErrStoreFailed, path, reason)
}

// logFileCheck walks a log file. Reading instead of mapping turns a bad sector into
// an error.
type logFileCheck struct {
	file      *os.File
	size      uint64
	pageBytes uint64
	pages     uint64 // all pages in use have smaller ids
	seen      []bool // by page
	buffer    []byte // holds the page that was read last
	entries   *logSize
}

// boltMeta is what a meta page holds.
type boltMeta struct{ pageBytes, root, freelist, pages, transaction uint64 }

func (c *logFileCheck) run() error {
	meta, err := c.readMetas()
	if err != nil {
		return err
	}
	c.pageBytes, c.pages = meta.pageBytes, meta.pages
	if c.pages < 3 || c.pages > c.size/c.pageBytes {
		return fmt.Errorf("it has %d bytes, and uses %d pages of %d bytes", c.size, c.pages, c.pageBytes)
	}
	c.seen = make([]bool, c.pages)
	c.seen[0], c.seen[1] = true, true
	if err := c.checkFreelist(meta.freelist); err != nil {
		return err
	}
	return c.checkBuckets(meta.root)
}

// readMetas returns the newer meta page. Both must be whole: a commit writes one of
// them, within one sector, so that a crash leaves it old or new. bbolt would go back
// to the older one without a word, and an acknowledged entry or a vote be gone.
func (c *logFileCheck) readMetas() (boltMeta, error) {
	first, err := c.readMeta(0)
	if err != nil {
		return boltMeta{}, err
	}
	second, err := c.readMeta(first.pageBytes)
	if err != nil {
		return boltMeta{}, err
	}
	if first.pageBytes != second.pageBytes {
		return boltMeta{}, fmt.Errorf("its meta pages name pages of %d and of %d bytes", first.pageBytes, second.pageBytes)
	}
	if second.transaction > first.transaction {
		return second, nil
	}
	return first, nil
}

func (c *logFileCheck) readMeta(at uint64) (boltMeta, error) {
	content := make([]byte, pageHeaderBytes+metaBytes)
	if c.size < at+uint64(len(content)) {
		return boltMeta{}, fmt.Errorf("it ends after %d bytes", c.size)
	}
	if _, err := c.file.ReadAt(content, int64(at)); err != nil {
		return boltMeta{}, err
	}
	content = content[pageHeaderBytes:]
	sum := fnv.New64a()
	_, _ = sum.Write(content[:metaSummedBytes])
	meta := boltMeta{
		pageBytes: uint64(native.Uint32(content[8:])), root: native.Uint64(content[16:]),
		freelist: native.Uint64(content[32:]), pages: native.Uint64(content[40:]), transaction: native.Uint64(content[48:]),
	}
	size := meta.pageBytes
	if native.Uint32(content) != boltMagic || native.Uint32(content[4:]) != boltVersion ||
		native.Uint64(content[metaSummedBytes:]) != sum.Sum64() ||
		size < minPageBytes || size > maxPageBytes || size&(size-1) != 0 {
		return boltMeta{}, fmt.Errorf("the meta page at byte %d is bad", at)
	}
	return meta, nil
}

// checkFreelist checks the list of free pages, which only a file without any entry
// has: see boltOptions.
func (c *logFileCheck) checkFreelist(id uint64) error {
	if id == boltNoFreelist {
		return nil
	}
	p, err := c.read(id)
	if err != nil {
		return err
	}
	list, count := p.content[pageHeaderBytes:], uint64(p.count)
	if count == longFreelistMark {
		count, list = native.Uint64(list), list[8:]
	}
	if p.flags != freelistPage || count > uint64(len(list))/8 {
		return fmt.Errorf("page %d is no list of free pages", id)
	}
	for i := range count {
		if free := native.Uint64(list[8*i:]); free < 2 || free >= c.pages {
			return fmt.Errorf("page %d lists page %d of %d", id, free, c.pages)
		}
	}
	return nil
}

// logBuckets are the library's two tables: of the entries, and of term and vote.
var logBuckets = map[string]func(c *logFileCheck, key, value []byte) error{
	"logs": (*logFileCheck).checkEntry,
	"conf": (*logFileCheck).checkStableValue,
}

func (c *logFileCheck) checkEntry(key, value []byte) error {
	if len(key) != 8 {
		return fmt.Errorf("an index of %d bytes", len(key))
	}
	c.entries.add(binary.BigEndian.Uint64(key), uint64(len(key)+len(value)+elementBytes))
	return nil
}

func (c *logFileCheck) checkStableValue(key, value []byte) error {
	if name := string(key); (name == "CurrentTerm" || name == "LastVoteTerm") && len(value) != 8 {
		return fmt.Errorf("a term of %d bytes", len(value))
	}
	return nil
}

// checkBuckets checks both tables. A new file has none yet; where only one is missed
// the library would go on with an empty one.
func (c *logFileCheck) checkBuckets(root uint64) error {
	buckets := map[string][]byte{}
	err := c.walk(root, bounds{}, func(flags uint32, key, value []byte) error {
		if _, known := logBuckets[string(key)]; !known || flags != bucketElement || len(value) < bucketHeadBytes {
			return fmt.Errorf("an unknown table %.20q", key)
		}
		buckets[string(key)] = slices.Clone(value)
		return nil
	})
	if err != nil {
		return err
	}
	if len(buckets) != 0 && len(buckets) != len(logBuckets) {
		return errors.New("one of its two tables is missing")
	}
	for name, head := range buckets {
		if err := c.checkBucket(head, logBuckets[name]); err != nil {
			return fmt.Errorf("table %s: %w", name, err)
		}
	}
	return nil
}

// checkBucket checks a table. A small one is kept beside its head.
func (c *logFileCheck) checkBucket(head []byte, check func(c *logFileCheck, key, value []byte) error) error {
	visit := func(flags uint32, key, value []byte) error {
		if flags != 0 {
			return fmt.Errorf("an element with flags %x", flags)
		}
		return check(c, key, value)
	}
	if root := native.Uint64(head); root != 0 {
		return c.walk(root, bounds{}, visit)
	}
	inline, err := parsePage(head[bucketHeadBytes:])
	if err != nil {
		return err
	}
	if inline.flags != leafPage {
		return fmt.Errorf("a small table with flags %x", inline.flags)
	}
	return inline.eachElement(bounds{}, visit)
}

// walk visits the elements of all leaves below a page, in order.
func (c *logFileCheck) walk(id uint64, within bounds, visit func(flags uint32, key, value []byte) error) error {
	p, err := c.read(id)
	if err != nil {
		return err
	}
	switch {
	case p.flags == leafPage:
		err = p.eachElement(within, visit)
	case p.flags == branchPage && p.count > 0:
		return c.walkBranch(p, within, visit)
	default:
		err = fmt.Errorf("flags %x", p.flags)
	}
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

func (c *logFileCheck) walkBranch(p page, within bounds, visit func(flags uint32, key, value []byte) error) error {
	type child struct {
		id  uint64
		key []byte
	}
	var children []child
	err := p.eachChild(within, func(id uint64, key []byte) {
		children = append(children, child{id: id, key: slices.Clone(key)}) // the buffer is used again
	})
	if err != nil {
		return fmt.Errorf("page %d: %w", p.id, err)
	}
	for i, child := range children {
		below := bounds{from: child.key, to: within.to}
		if i+1 < len(children) {
			below.to = children[i+1].key
		}
		if err := c.walk(child.id, below, visit); err != nil {
			return err
		}
	}
	return nil
}

// read returns a page with those that it runs over. It is valid until the next call.
func (c *logFileCheck) read(id uint64) (page, error) {
	if id < 2 || id >= c.pages {
		return page{}, fmt.Errorf("there is no page %d, of %d", id, c.pages)
	}
	if err := c.fill(0, c.pageBytes, id); err != nil {
		return page{}, err
	}
	last := id + uint64(native.Uint32(c.buffer[12:]))
	if own := native.Uint64(c.buffer); own != id || last >= c.pages {
		return page{}, fmt.Errorf("page %d calls itself %d, and ends at page %d of %d", id, own, last, c.pages)
	}
	if err := c.fill(c.pageBytes, (last-id+1)*c.pageBytes, id); err != nil {
		return page{}, err
	}
	for i := id; i <= last; i++ {
		if c.seen[i] {
			return page{}, fmt.Errorf("page %d is in use twice", i)
		}
		c.seen[i] = true
	}
	return parsePage(c.buffer)
}

// fill reads some bytes of a page into the buffer, which ends with them.
func (c *logFileCheck) fill(from, to, id uint64) error {
	c.buffer = slices.Grow(c.buffer[:from], int(to-from))[:to]
	if _, err := c.file.ReadAt(c.buffer[from:to], int64(id*c.pageBytes+from)); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

// page is one that was read.
type page struct {
	id           uint64
	flags, count uint16
	content      []byte // with its header
}

func parsePage(content []byte) (page, error) {
	if len(content) < pageHeaderBytes {
		return page{}, fmt.Errorf("a page of %d bytes", len(content))
	}
	return page{
		id: native.Uint64(content), flags: native.Uint16(content[8:]), count: native.Uint16(content[10:]), content: content,
	}, nil
}

// bounds of the keys below a branch: from is the first that may be, to the first that
// may not; nil: any.
type bounds struct{ from, to []byte }

// next narrows the bounds to what may follow a key.
func (b *bounds) next(key []byte) error {
	if bytes.Compare(key, b.from) < 0 || b.to != nil && bytes.Compare(key, b.to) >= 0 {
		return errors.New("its keys are in no order")
	}
	b.from = append(slices.Clip(key), 0) // the smallest key behind it
	return nil
}

func (p page) eachElement(within bounds, visit func(flags uint32, key, value []byte) error) error {
	for i := range uint64(p.count) {
		head, err := p.element(i)
		if err != nil {
			return err
		}
		keyBytes, valueBytes := uint64(native.Uint32(head[8:])), uint64(native.Uint32(head[12:]))
		content, err := p.slice(i, uint64(native.Uint32(head[4:])), keyBytes+valueBytes)
		if err != nil {
			return err
		}
		key := content[:keyBytes]
		if err := within.next(key); err != nil {
			return err
		}
		if err := visit(native.Uint32(head), key, content[keyBytes:]); err != nil {
			return err
		}
	}
	return nil
}

func (p page) eachChild(within bounds, visit func(id uint64, key []byte)) error {
	for i := range uint64(p.count) {
		head, err := p.element(i)
		if err != nil {
			return err
		}
		key, err := p.slice(i, uint64(native.Uint32(head)), uint64(native.Uint32(head[4:])))
		if err != nil {
			return err
		}
		if err := within.next(key); err != nil {
			return err
		}
		visit(native.Uint64(head[8:]), key)
	}
	return nil
}

// element returns the head of an element.
func (p page) element(i uint64) ([]byte, error) {
	at := pageHeaderBytes + i*elementBytes
	if at+elementBytes > uint64(len(p.content)) {
		return nil, fmt.Errorf("%d elements", p.count)
	}
	return p.content[at : at+elementBytes], nil
}

// slice returns what an element points to, relative to itself.
func (p page) slice(element, position, length uint64) ([]byte, error) {
	at := pageHeaderBytes + element*elementBytes + position
	if position < elementBytes || at+length > uint64(len(p.content)) {
		return nil, fmt.Errorf("element %d lies outside", element)
	}
	return p.content[at : at+length], nil
}
