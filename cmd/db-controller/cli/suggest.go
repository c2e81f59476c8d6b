package cli

// DidYouMean returns a question with the known name that is most similar to a misspelt one; nothing if none
// is similar.
func DidYouMean(given string, known []string) string {
	if near := nearest(given, known); near != "" {
		return ": did you mean " + near + "?"
	}
	return ""
}

// nearest returns the known name that is most similar to a misspelt one; empty if none is similar.
func nearest(given string, known []string) string {
	best, least := "", max(2, len(given)/3)+1
	for _, k := range known {
		if d := distance(given, k); d < least {
			best, least = k, d
		}
	}
	return best
}

// distance is the number of bytes to insert, delete or replace to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
