package northbound

import (
	"context"
	"regexp"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// domainWords are what the user agent of a tool begins with that calls groups domains:
// the product's slimctl, and upstream's, which is the only tool that its gRPC library
// is known for.
var domainWords = []string{"slimctl", "tonic/"}

// saysDomain reports whether the tool that asks calls groups domains.
func saysDomain(ctx context.Context) bool {
	incoming, _ := metadata.FromIncomingContext(ctx)
	for _, agent := range incoming.Get("user-agent") {
		for _, prefix := range domainWords {
			if strings.HasPrefix(agent, prefix) {
				return true
			}
		}
	}
	return false
}

// groupWord matches the word as it stands in our texts, not in names.
var groupWord = regexp.MustCompile(`(^|[ (])group(s?)([ ,;:)]|$)`)

// inDomains returns a text of ours in the words of slimctl.
func inDomains(text string) string {
	if !strings.Contains(text, "group") {
		return text
	}
	return groupWord.ReplaceAllString(text, "${1}domain${2}${3}")
}

func domainError(err error) error {
	answer, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	changed := answer.Proto()
	changed.Message = inDomains(changed.GetMessage())
	return status.ErrorProto(changed)
}

// domainTexts changes the texts of an answer, which belongs to the call.
func domainTexts(answer any) {
	change := func(lines []string) {
		for i, line := range lines {
			lines[i] = inDomains(line)
		}
	}
	switch answer := answer.(type) {
	case *controlplanepb.LinkEntry:
		answer.StatusMsg = inDomains(answer.GetStatusMsg())
	case *controlplanepb.RouteEntry:
		answer.StatusMsg = inDomains(answer.GetStatusMsg())
	case *controlplanepb.AddTopologyLinkResponse:
		change(answer.GetWarnings())
	case *slimcppb.Explanation:
		change(answer.GetLines())
	case *slimcppb.ConvergenceResponse:
		change(answer.GetLines())
		change(answer.GetWarnings())
	}
}

// unaryWords and streamWords answer a tool in its own words.
func unaryWords(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	answer, err := handle(ctx, request)
	if !saysDomain(ctx) {
		return answer, err
	}
	if err == nil {
		domainTexts(answer)
	}
	return answer, domainError(err)
}

func streamWords(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if !saysDomain(stream.Context()) {
		return handle(service, stream)
	}
	return domainError(handle(service, &domainStream{stream}))
}

// domainStream is a stream whose answers are in the words of slimctl.
type domainStream struct{ grpc.ServerStream }

func (s *domainStream) SendMsg(answer any) error {
	domainTexts(answer)
	return s.ServerStream.SendMsg(answer)
}
