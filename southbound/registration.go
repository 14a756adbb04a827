package southbound

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// A registration must fit into one command, whatever the node sends. Links
	// beyond that are claimed one by one.
	maxDetailBytes   = 64 << 10
	maxReportedLinks = 10_000
	// maxListedLinks bounds the memory of one stream: a link per other group.
	maxListedLinks = 100_000
	linkIDBytes    = 36
	// maxLogged is up to which length a node's value stands whole in a log line, in
	// bytes; a good node id is no longer. Of a longer one loggedPart is there.
	maxLogged  = 512
	loggedPart = 64
)

// registration is what a node asked for with its first message.
type registration struct {
	requestID   string
	nodeID      string // for logs also if it is malformed
	fault       error  // why it is refused whatever the state is
	credentials Credentials
	command     *slimcppb.RegisterNode
	// listed are the ids of our links that the node reported.
	listed map[string]struct{}
	// unreported are links for which the command had no room.
	unreported []string
	// skipped says what of the request was left out.
	skipped []error
	// undialable says why nobody is sent to an endpoint of the node.
	undialable []error
	// appliedIndex is the replica's when the request was read (protocol S1).
	appliedIndex uint64
}

// parseRegistration reads a node's first message. An error says why it is refused
// whatever the state is; the registration then holds what is good for a log line.
func parseRegistration(view *fsm.View, message *controllerpb.ControlMessage, peer net.Addr) (*registration, error) {
	r := &registration{requestID: message.GetMessageId(), appliedIndex: view.Index(), listed: map[string]struct{}{}}
	payload, ok := message.GetPayload().(*controllerpb.ControlMessage_RegisterNodeRequest)
	if !ok {
		return r, fmt.Errorf("first message is %s, expected register_node_request", payloadName(message))
	}
	request := payload.RegisterNodeRequest
	group, node := request.GetDomainName(), request.GetNodeId()
	if err := fsm.CheckNodeID(group, node); err != nil {
		r.nodeID = fsm.NodeID(logged(group), logged(node))
		return r, err
	}
	r.nodeID = fsm.NodeID(group, node)
	r.credentials = Credentials{Group: group, Node: node, Token: request.GetCredentials(), ReceivedAt: time.Now()}
	r.command = &slimcppb.RegisterNode{Group: group, Node: node}
	if peer != nil {
		r.command.PeerAddress = peer.String()
	}
	r.readDetails(request.GetConnectionDetails(), peer)
	r.readLinks(view, request.GetConnections())
	return r, nil
}

func (r *registration) readDetails(details []*controllerpb.ConnectionDetails, peer net.Addr) {
	size := 0
	for _, detail := range details {
		converted, err := convertDetail(detail, peer)
		if err == nil {
			if size += proto.Size(converted); size > maxDetailBytes {
				err = fmt.Errorf("connection details of more than %d bytes", maxDetailBytes)
			}
		}
		if err != nil {
			r.skipped = append(r.skipped, err)
			continue
		}
		r.command.Details = append(r.command.Details, converted)
		if external := converted.GetExternalEndpoint(); external != "" && !canDial(external) {
			converted.ExternalEndpointMalformed = true
			r.undialable = append(r.undialable, fmt.Errorf("external endpoint %q: accepted is HOST:PORT", logged(external)))
		}
	}
	slices.SortFunc(r.command.Details, compareDetails)
}

func convertDetail(detail *controllerpb.ConnectionDetails, peer net.Addr) (*slimcppb.ConnectionDetail, error) {
	method := slimcppb.AuthMethod(detail.GetAuthMethod())
	if _, known := slimcppb.AuthMethod_name[int32(method)]; !known {
		return nil, fmt.Errorf("connection detail %q has unknown auth method %d", logged(detail.GetEndpoint()), method)
	}
	return &slimcppb.ConnectionDetail{
		Endpoint:         resolveWildcard(detail.GetEndpoint(), peer),
		ExternalEndpoint: detail.ExternalEndpoint,
		TlsRequired:      detail.GetTlsRequired(),
		AuthMethod:       method,
		TrustDomain:      detail.GetSpireTrustDomain(),
	}, nil
}

// logged is a node's value as it stands in a log line: a node may send megabytes.
func logged(value string) string {
	if len(value) <= maxLogged {
		return value
	}
	return fmt.Sprintf("%s... (%d bytes)", strings.ToValidUTF8(value[:loggedPart], ""), len(value))
}

// compareDetails makes the order of a node's details its own, not that of its
// configuration file.
func compareDetails(a, b *slimcppb.ConnectionDetail) int {
	return cmp.Or(
		strings.Compare(a.GetEndpoint(), b.GetEndpoint()),
		strings.Compare(a.GetExternalEndpoint(), b.GetExternalEndpoint()),
		compareBool(a.GetTlsRequired(), b.GetTlsRequired()),
		cmp.Compare(a.GetAuthMethod(), b.GetAuthMethod()),
		strings.Compare(a.GetTrustDomain(), b.GetTrustDomain()),
		compareBool(a.ExternalEndpoint != nil, b.ExternalEndpoint != nil),
	)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// resolveWildcard replaces the host of an endpoint that means "every address of
// mine" by the address that the node came from.
func resolveWildcard(endpoint string, peer net.Addr) string {
	tcp, ok := peer.(*net.TCPAddr)
	colon := strings.LastIndexByte(endpoint, ':')
	if !ok || colon < 0 {
		return endpoint
	}
	switch strings.Trim(endpoint[:colon], "[]") {
	case "", "0.0.0.0", "::":
		// A zone means nothing on another host.
		address := tcp.AddrPort().Addr().Unmap().WithZone("")
		return net.JoinHostPort(address.String(), endpoint[colon+1:])
	}
	return endpoint
}

// readLinks keeps only links that are ours: a node also reports applications and
// connections of its own. Of these only what arrived counts, since a node drops
// what it dialled before it connects (protocol A9).
func (r *registration) readLinks(view *fsm.View, entries []*controllerpb.ConnectionEntry) {
	arrived := map[string]struct{}{}
	for _, entry := range entries {
		id := entry.GetLinkId()
		if !isOurs(view, id) {
			continue
		}
		if link, known := view.Link(id); known && link.SourceGroup != r.command.GetGroup() && link.DestGroup != r.command.GetGroup() {
			continue
		}
		if len(r.listed) == maxListedLinks {
			r.skipped = append(r.skipped, fmt.Errorf("more than %d links reported", maxListedLinks))
			return
		}
		r.listed[id] = struct{}{}
		if _, twice := arrived[id]; twice ||
			entry.GetDirection() != controllerpb.ConnectionDirection_CONNECTION_DIRECTION_INCOMING {
			continue
		}
		arrived[id] = struct{}{}
		if len(r.command.Links) < maxReportedLinks {
			r.command.Links = append(r.command.Links, &slimcppb.ReportedLink{LinkId: id, Incoming: true})
		} else {
			r.unreported = append(r.unreported, id)
		}
	}
}

// isOurs reports whether an id is of a link of this cluster, in the only form
// that we write it.
func isOurs(view *fsm.View, id string) bool {
	return len(id) == linkIDBytes && view.OwnLinkID(id)
}

// build returns the command for a session name.
func (r *registration) build(name fsm.SessionName, resumed bool, provisionalEpoch uint64) *slimcppb.Command {
	command := proto.CloneOf(r.command)
	command.Session = name.Proto()
	command.Resumed, command.ProvisionalEpoch = resumed, provisionalEpoch
	return &slimcppb.Command{Payload: &slimcppb.Command_RegisterNode{RegisterNode: command}}
}

// payloadName returns the field of a message's payload, for logs.
func payloadName(message *controllerpb.ControlMessage) string {
	reflected := message.ProtoReflect()
	field := reflected.WhichOneof(reflected.Descriptor().Oneofs().ByName("payload"))
	if field == nil {
		return "empty"
	}
	return string(field.Name())
}

// errLongMessageID is about an id that has no place in the log.
var errLongMessageID = errors.New("message id is longer than 128 bytes or not UTF-8")

func checkMessageID(id string) error {
	if len(id) > 128 || !utf8.ValidString(id) {
		return errLongMessageID
	}
	return nil
}
