package perplexity

import (
	"bytes"
	"encoding/json"
	"reflect"
)

const (
	// maxElements bounds the elements of a list of the API, including those of its
	// elements. Few answers have a tenth of it.
	maxElements = 1000
	// elementSize is the memory of an element besides its text, in bytes, about.
	elementSize = 128
)

// A list is a JSON array of at most maxElements elements. It decodes one element at a
// time, because an element of two bytes may take a hundred in memory.
type list[T any] []T

// UnmarshalJSON implements [json.Unmarshaler]. It returns an *Error beyond the limit.
func (l *list[T]) UnmarshalJSON(data []byte) error {
	*l = nil
	if string(data) == "null" {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if start, err := dec.Token(); err != nil {
		return err
	} else if start != json.Delim('[') {
		return &json.UnmarshalTypeError{Value: "value that is not an array", Type: reflect.TypeFor[[]T]()}
	}
	for n := 0; dec.More(); {
		if n++; n > maxElements {
			return tooMany()
		}
		var element T
		if err := dec.Decode(&element); err != nil {
			return err
		}
		if nested, ok := any(&element).(interface{ elements() int }); ok {
			if n += nested.elements(); n > maxElements {
				return tooMany()
			}
		}
		*l = append(*l, element)
	}
	return nil
}
