package southbound

import "testing"

func TestEndpointsThatNodesCanDial(t *testing.T) {
	for endpoint, want := range map[string]bool{
		"node.example:46357":         true,
		"node_1.example:1":           true,
		"10.0.0.1:65535":             true,
		"[2001:db8::7]:46357":        true,
		"http://node.example:46357":  true,
		"https://node.example:46357": true,
		"node.example":               true, // the port of the scheme
		"[::1]":                      true,

		"":                           false,
		"http://":                    false,
		":46357":                     false,
		"node.example:":              false,
		"node.example:0":             false,
		"node.example:65536":         false,
		"node.example:http":          false,
		"node example:46357":         false,
		"node.example:46357\n":       false,
		"nöde.example:46357":         false,
		"2001:db8::7:46357":          false,
		"[2001:db8::7:46357":         false,
		"[node.example]:46357":       false,
		"grpc://node.example:46357":  false,
		"http://http://node.example": false,
		"${EXTERNAL}:46357":          false,
		"<node>:46357":               false,
	} {
		if got := canDial(endpoint); got != want {
			t.Errorf("%q: %v, want %v", endpoint, got, want)
		}
	}
}
