package docs_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/config"
)

// configurations are the blocks of slim-cp's own configuration on a page: whole
// files, and parts of the cluster section, which are put into the first file.
func configurations(t *testing.T, page string) []string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var whole, parts []string
	for _, block := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		switch {
		case strings.Contains(block[1], "northbound:"):
			whole = append(whole, block[1])
		case strings.HasPrefix(block[1], "# part of the cluster section\n"):
			parts = append(parts, strings.ReplaceAll("\n"+strings.TrimSpace(block[1]), "\n", "\n  "))
		}
	}
	for _, part := range parts {
		file := strings.Replace(whole[0], "\ncluster:", "\ncluster:"+part, 1)
		if file == whole[0] {
			t.Fatalf("%s: the first configuration has no cluster section", page)
		}
		whole = append(whole, file)
	}
	return whole
}

func TestDocumentedConfigurationsAreAccepted(t *testing.T) {
	t.Setenv("POD_NAME", "slim-cp-0")
	t.Setenv("POD_NAMESPACE", "control")
	for page, want := range map[string]int{"deploy.md": 4, "../README.md": 2} {
		found := configurations(t, page)
		if len(found) != want {
			t.Errorf("%s: %d configurations, want %d", page, len(found), want)
		}
		for _, text := range found {
			settings, err := config.Parse(page, []byte(text))
			if err != nil {
				t.Errorf("%v\n%s", err, text)
				continue
			}
			for _, problem := range settings.Unserved() {
				t.Errorf("%v\n%s", problem, text)
			}
			for _, warning := range settings.Warnings {
				t.Errorf("%s\n%s", warning, text)
			}
		}
	}
}
