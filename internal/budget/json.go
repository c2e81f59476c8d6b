package budget

// shape counts the parts of a JSON text.
type shape struct{ values, objects, lists, fields int64 }

// shapeOf reads each byte of a JSON text once.
func shapeOf(text []byte) (s shape) {
	s.values = 1
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case ',':
			s.values++
		case ':':
			s.fields++
		case '{':
			s.values++
			if i+1 < len(text) && text[i+1] != '}' {
				s.objects++
			}
		case '[':
			s.values++
			s.lists++
		}
	}
	return s
}

// Bytes of decoded JSON.
const (
	valueBytes  = 40  // the place in its list or map, and a number
	objectBytes = 340 // a map with places for eight fields
	fieldBytes  = 64  // of a map with more, and a key
	listBytes   = 32
)

// DecodedBytes is about the memory of a JSON text that is decoded into maps, lists and values.
func DecodedBytes(text []byte) int64 {
	s := shapeOf(text)
	return int64(len(text)) + valueBytes*s.values + objectBytes*s.objects + fieldBytes*s.fields + listBytes*s.lists
}

// Values is the number of values of a JSON text.
func Values(text []byte) int64 { return shapeOf(text).values }

// EncodedBytes is the greatest size of a JSON text that is encoded as google.protobuf.Struct: a number has 11
// bytes, and a length has up to 4 for each level that begins.
func EncodedBytes(text []byte) int64 {
	s := shapeOf(text)
	return int64(len(text)) + 11*s.values + 11*s.fields
}
