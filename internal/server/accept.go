package server

import "strings"

const eventStream = "text/event-stream"

type accept struct{ none, any, json, stream, html bool }

func parseAccept(values []string) (a accept) {
	a.none = true
	for _, value := range values {
		for part := range strings.SplitSeq(value, ",") {
			switch mediaType(part) {
			case "":
				continue
			case "*/*":
				a.any = true
			case "application/json", "application/*":
				a.json = true
			case eventStream, "text/*":
				a.stream = true
			case "text/html":
				a.html = true
			}
			a.none = false
		}
	}
	return a
}

func mediaType(v string) string {
	v, _, _ = strings.Cut(v, ";")
	return strings.ToLower(strings.TrimSpace(v))
}
