package box

import (
	"fmt"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/box/cleantext"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
	"github.com/glovebox-dev/glovebox/internal/plural"
)

const (
	// maxDocuments bounds the documents of one run, apart from unshown images.
	maxDocuments = 5
	// maxDocumentBytes bounds the bytes of all documents of one run.
	maxDocumentBytes = 8 << 20
)

// A document is displayed data that a result cannot show or shows only in part. It is
// stored as a file in the box.
type document struct {
	what   string // begins the note about it
	suffix string // of the file's name
	data   string
	path   string // in the box; "" until it is saved
}

// textTypes are the representations that read well as text. They replace a text/plain
// that names only the object's type.
var textTypes = [...]string{"text/markdown", "text/latex", "application/json"}

// placeholder matches Python's default repr of an object.
var placeholder = lazyregexp.New(`^<[^<>\n]{1,200}>$`)

// plain returns the text of a display, "" if it has none.
func plain(d protocol.Display) string {
	text := d.Data["text/plain"]
	if text != "" && !placeholder().MatchString(text) {
		return text
	}
	for _, mime := range textTypes {
		if other := d.Data[mime]; other != "" {
			return other
		}
	}
	return text
}

// keepDocument keeps a vector graphic or a page that the result does not show. A page
// counts if it is all that the display has, or if it is interactive: a table has its
// text as well.
func (c *collector) keepDocument(d protocol.Display, text string) {
	page := d.Data["text/html"]
	switch svg := d.Data["image/svg+xml"]; {
	case svg != "":
		c.addDocument("1 SVG image is not shown", ".svg", svg)
	case page != "" && (text == "" || placeholder().MatchString(text) || strings.Contains(page, "<script")):
		c.addDocument("1 HTML display is not shown", ".html", page)
	}
}

func (c *collector) addDocument(what, suffix, data string) {
	if c.documentBytes += len(data); len(c.documents) >= maxDocuments || c.documentBytes > maxDocumentBytes {
		c.documentBytes -= len(data)
		c.skipped[skipDocument]++
		return
	}
	c.documents = append(c.documents, document{what: what, suffix: suffix, data: data})
}

// keepTraceback keeps a traceback of which the result shows only a part.
func (c *collector) keepTraceback(e *protocol.RunError) {
	if e == nil {
		return
	}
	if text := cleantext.Clean(e.Traceback); len(text) > maxTraceback {
		c.addDocument(fmt.Sprintf("The traceback of %s is cut", plural.N(len(text), "byte")), ".txt", text)
	}
}

// documentNotes says of each document where it is.
func (c *collector) documentNotes() []string {
	var notes []string
	for _, doc := range c.documents {
		where := "."
		if doc.path != "" {
			where = ": see " + doc.path + "."
		}
		notes = append(notes, doc.what+where)
	}
	if n := c.skipped[skipDocument]; n > 0 {
		notes = append(notes, fmt.Sprintf("%s not shown or cut, and not kept: a call keeps %d files, of %d MB in all.",
			plural.N(n, "more display"), maxDocuments, maxDocumentBytes>>20))
	}
	// Not even the file has all of these.
	if c.resultCut {
		notes = append(notes, "The last value is longer than what is kept of it, and is whole in the variable _ only: print it or write it to a file.")
	}
	if c.cut {
		notes = append(notes, "A displayed value is longer than what is kept of it: print it or write it to a file.")
	}
	return notes
}
