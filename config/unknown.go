package config

import (
	"maps"
	"slices"
	"strings"
)

// restrictions are the keys of auth without which a listener would accept callers
// that its file means to refuse.
var restrictions = []string{
	"aud", "audience", "audiences", "cel", "claims", "iss", "issuer", "issuer_url", "jwt_audiences", "key", "password", "policy", "rego",
	"rego_file", "sub", "subject", "target_spiffe_id", "trust_domains", "username",
}

// essential are the keys of the top level in whose place a default would be another
// control plane: other ports or plaintext, a state that vanishes, a replica that is
// alone, no topology.
var essential = []string{"cluster", "database", "northbound", "southbound", "topology"}

// unknownKeyIsFatal reports whether a file is refused for an unknown key of this
// map. Ignored, a misspelled key of the topology or of the registration would take
// links or authentication away, one of TLS or auth would leave a listener weaker than
// its operator believes, and so would a misspelled listener.
func (v value) unknownKeyIsFatal(key string, known fields) bool {
	parts := strings.Split(listIndex.ReplaceAllString(v.path, ""), ".")
	switch at := slices.Index(parts, "auth"); {
	case v.path == "":
		return slices.Contains(essential, similar(key, known))
	case parts[0] == "topology" || slices.Contains(parts, "tls"):
		return true
	case at < 0:
		return false
	case slices.Contains(parts[at:], "claims") || slices.Contains(parts[at:], "policy"):
		return true
	default:
		return slices.Contains(restrictions, key) || slices.Contains(restrictions, similar(key, known))
	}
}

// didYouMean is what a message about an unknown key ends with.
func didYouMean(key string, known fields) string {
	if candidate := similar(key, known); candidate != "" {
		return "; did you mean " + candidate + "?"
	}
	return ""
}

// similar returns the known key that an unknown one was probably meant to be, ""
// if none is close.
func similar(key string, known fields) string {
	const longest = 64 // no known key comes near it
	plain := func(key string) string {
		return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(key))
	}
	best, least := "", 3
	for _, candidate := range slices.Sorted(maps.Keys(known)) {
		if len(key) > longest {
			break
		}
		limit := 2 // edits
		if len(candidate) <= 5 {
			limit = 1
		}
		if distance := editDistance(plain(key), plain(candidate)); distance <= limit && distance < least {
			best, least = candidate, distance
		}
	}
	return best
}

// editDistance counts the characters to insert, delete, replace or swap with their
// neighbour to make one text of another.
func editDistance(a, b string) int {
	var beforeLast []int
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], beforeLast[j-1]+1)
			}
		}
		beforeLast, last = last, row
	}
	return last[len(b)]
}
