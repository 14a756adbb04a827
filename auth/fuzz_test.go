package auth_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/auth"
)

// FuzzToken checks that no text is accepted that was not made with the secret,
// for this node, in time; and that one which is refused is not shown. The same
// bytes are tried with an authentic MAC too, or nothing behind it would be
// reached.
func FuzzToken(f *testing.F) {
	f.Add(vector, "node-1")
	f.Add("cluster-a/node-1_AbCdEf12:1700003600:AAECAwQFBgcICQoL:", "node-1")
	f.Fuzz(func(t *testing.T, text, node string) {
		for _, token := range []string{text, authentic(text)} {
			proof, err := known.Verify("cluster-a", node, token, at(signed))
			if err != nil {
				quiet(t, err, token)
				continue
			}
			last := strings.LastIndexByte(token, ':')
			if last < 0 || token != authentic(token[:last]) {
				t.Fatalf("accepted %q without the secret", token)
			}
			id, rest, _ := strings.Cut(token, ":")
			prefix := "cluster-a/" + node
			if suffix, ok := strings.CutPrefix(id, prefix); !ok || len(suffix) != 0 && len(suffix) != 9 {
				t.Fatalf("accepted %q for %q", id, prefix)
			}
			seconds, _, _ := strings.Cut(rest, ":")
			made, err := strconv.ParseInt(seconds, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			if made < signed-3600 || made > signed+300 {
				t.Fatalf("accepted a token of %d at %d", made, int64(signed))
			}
			if want := at(made).Add(auth.MaxAge + auth.MaxAhead); !proof.Expires.Equal(want) {
				t.Fatalf("expires %s, want %s", proof.Expires, want)
			}
		}
	})
}
