package fsm

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// maxNumber bounds every index, term and counter of a state. None ever comes near
	// it, and what is added to one that does not pass it does not overflow.
	maxNumber = 1 << 62
	// maxRestoreStep is by how much index, term and generation of a file may be above
	// those of the cluster that it is restored into: far more than any life is long, and
	// so little that a replica that is behind can still follow.
	maxRestoreStep = 1 << 39
	// maxClockStep is by how much its clock may be ahead.
	maxClockStep = 365 * 24 * time.Hour
	// maxProblems are told of one state.
	maxProblems = 100
	// maxShownBytes of a value are told.
	maxShownBytes = 64
)

// StateError lists what is wrong with a state, at most 100 lines.
type StateError struct {
	Problems []string
}

// Error tells the first problem, in one line.
func (e *StateError) Error() string {
	if n := len(e.Problems); n > 1 {
		return fmt.Sprintf("%s (and %d more problems)", e.Problems[0], n-1)
	}
	return e.Problems[0]
}

// judge goes over a whole state and notes what is wrong with it. Snapshots from outside,
// the newest snapshot at a start and the tests of what Apply does have the same one.
type judge struct {
	*tables
	problems []string
}

func (j *judge) say(format string, args ...any) {
	if len(j.problems) < maxProblems {
		j.problems = append(j.problems, fmt.Sprintf(format, args...))
	}
}

func (j *judge) err() error {
	if len(j.problems) == 0 {
		return nil
	}
	return &StateError{Problems: j.problems}
}

// state judges what must hold of every state: the numbers, the records, and that they
// agree with each other and with the indexes. It costs the length of the tables.
func (j *judge) state() {
	j.numbers()
	j.judgeNodes()
	j.judgeLinks()
	j.judgeNames()
	j.judgeOthers()
	j.judgeRendered()
	j.checkLinks()
	j.checkNodes()
	j.checkNames()
}

// number judges one that has no other bound.
func (j *judge) number(n uint64, format string, args ...any) {
	if n > maxNumber {
		j.say("%s is %d, which is beyond every number of a state", fmt.Sprintf(format, args...), n)
	}
}

// index judges one that was taken from the log.
func (j *judge) index(n uint64, format string, args ...any) {
	if n > j.meta.Index {
		j.say("%s is %d, and the state's index is %d", fmt.Sprintf(format, args...), n, j.meta.Index)
	}
}

// at judges a time that was taken from the state's clock.
func (j *judge) at(t time.Time, format string, args ...any) {
	if t.After(j.meta.Clock) {
		j.say("%s is %s, and the state's clock is %s", fmt.Sprintf(format, args...), t.Format(time.RFC3339), j.meta.Clock.Format(time.RFC3339))
	}
}

func (j *judge) numbers() {
	m := &j.meta
	j.number(m.Index, "the index")
	j.number(m.Term, "the term")
	j.number(m.Generation, "the generation")
	if m.ClusterID != "" && m.Generation == 0 {
		j.say("the generation is 0, and the cluster has an id")
	}
	if m.LeaderTerm > m.Term {
		j.say("the leader's term is %d, and the state's term is %d", m.LeaderTerm, m.Term)
	}
	j.index(m.TreesRevision, "the revision of the trees")
	j.index(m.FleetRevision, "the revision of the fleet configuration")
	if nanos := timeToProto(m.Clock); nanos < 0 || nanos > maxNumber {
		j.say("the clock is %s", m.Clock.Format(time.RFC3339))
	}
}

func (j *judge) judgeNodes() {
	for node := range j.Nodes() {
		if node.State < NodePresent || node.State > NodeLeaving {
			j.say("node %q is in state %d, which there is not", node.ID, node.State)
		}
		j.at(node.CreatedAt, "the beginning of node %q", node.ID)
		j.index(node.Acked, "what node %q confirmed", node.ID)
		j.details(node.Details, node.ID)
		for _, session := range node.Sessions {
			j.session(session.Name, node.ID)
			j.number(session.Epoch, "the epoch of a session of node %q", node.ID)
			j.number(session.Sequence, "the sequence number of a session of node %q", node.ID)
			j.at(session.RegisteredAt, "the registration of node %q", node.ID)
			j.details(session.Details, node.ID)
		}
		if last := node.LastSession; !last.Name.IsZero() {
			j.session(last.Name, node.ID)
			j.index(last.Index, "the end of the last session of node %q", node.ID)
			j.at(last.At, "the end of the last session of node %q", node.ID)
			if _, known := slimcppb.LossReason_name[int32(last.Reason)]; !known {
				j.say("the last session of node %q ended for reason %d, which there is not", node.ID, last.Reason)
			}
		}
		if n := len(node.Failures); n > MaxFailures {
			j.say("node %q has %d failed routes, at most %d are kept", node.ID, n, MaxFailures)
		}
		for _, failure := range node.Failures {
			j.number(failure.Revision, "the revision of a failed route of node %q", node.ID)
			j.at(failure.UpdatedAt, "the failure of a route of node %q", node.ID)
		}
	}
}

func (j *judge) session(name SessionName, nodeID string) {
	j.number(name.Counter, "the number of a session of node %q", nodeID)
	if name.ReplicaID == "" {
		j.say("a session of node %q is on no replica", nodeID)
	}
}

func (j *judge) details(details []ConnectionDetail, nodeID string) {
	for _, detail := range details {
		if _, known := slimcppb.AuthMethod_name[int32(detail.AuthMethod)]; !known {
			j.say("a connection of node %q has the authentication method %d, which there is not", nodeID, detail.AuthMethod)
		}
	}
}

func (j *judge) judgeLinks() {
	for link := range j.Links() {
		if link.ID == "" {
			j.say("a link of %s~%s has no id", link.SourceGroup, link.DestGroup)
		}
		if link.Status < LinkPending || link.Status > LinkDeleted {
			j.say("link %s has the status %d, which there is not", link.ID, link.Status)
		}
		if _, known := slimcppb.AuthMethod_name[int32(link.AuthMethod)]; !known {
			j.say("link %s has the authentication method %d, which there is not", link.ID, link.AuthMethod)
		}
		j.index(link.SourceRevision, "the revision of link %s at its source", link.ID)
		j.index(link.DestRevision, "the revision of link %s at its end", link.ID)
		j.at(link.CreatedAt, "the beginning of link %s", link.ID)
		j.at(link.UpdatedAt, "the last change of link %s", link.ID)
		j.at(link.ReachedAt, "the last contact over link %s", link.ID)
	}
}

func (j *judge) judgeNames() {
	for record := range j.Names() {
		j.index(record.Revision, "the revision of name %s", record.Name)
		j.at(record.UpdatedAt, "the last change of name %s", record.Name)
		for _, announcer := range record.Announcers {
			j.announcer(&announcer, record.Name)
		}
	}
	for tombstone := range j.Tombstones() {
		j.index(tombstone.Revision, "the revision of the withdrawn name %s", tombstone.Name)
		j.at(tombstone.RemovedAt, "the withdrawal of name %s", tombstone.Name)
		j.announcer(&tombstone.Announcer, tombstone.Name)
	}
}

func (j *judge) announcer(announcer *Announcer, name Name) {
	j.index(announcer.First.Index, "the first announcement of name %s by node %q", name, announcer.NodeID)
	j.index(announcer.SaidAt, "the last announcement of name %s by node %q", name, announcer.NodeID)
	j.index(announcer.DoubtedAt, "the doubted withdrawal of name %s by node %q", name, announcer.NodeID)
	j.number(announcer.Epoch, "the epoch of name %s at node %q", name, announcer.NodeID)
}

func (j *judge) judgeOthers() {
	for ended := range j.ended.all() {
		j.number(ended.name.Counter, "the number of an ended session")
		j.index(ended.index, "the end of a session")
	}
	for segment := range j.segments.all() {
		if segment.Name == "" {
			j.say("a segment has no name")
		}
		for i, edge := range segment.Edges {
			if edge[0] >= edge[1] || i > 0 && compareEdges(segment.Edges[i-1], edge) >= 0 {
				j.say("the links of segment %q are out of order", segment.Name)
			}
			for _, group := range edge {
				j.group(group, "a link of segment %q", segment.Name)
			}
		}
	}
	for secret := range j.secrets.all() {
		j.group(secret.Group, "a secret")
		if secret.KeyID == "" && len(secret.Value) < MinSecretBytes {
			j.say("the secret of group %q is shorter than %d bytes", secret.Group, MinSecretBytes)
		}
		j.index(secret.Index, "the beginning of the secret of group %q", secret.Group)
	}
	for token := range j.tokens.all() {
		j.number(token.session.Counter, "the number of the session of a token")
	}
	for replica := range j.replicas.all() {
		if replica.ID == "" {
			j.say("a replica has no id")
		}
		j.index(replica.Confirmed, "the end of the log of replica %q", replica.ID)
	}
	for unlinked := range j.unlinked.all() {
		j.group(unlinked.Group, "links that are to be made")
		if j.meta.ActiveSchema < 2 {
			j.say("group %q has links that are to be made, which schema %d does not know", unlinked.Group, j.meta.ActiveSchema)
		}
	}
	for result := range j.requestOrder.all() {
		j.index(result.request.index, "the result of request %q", result.id)
		if len(result.id) > MaxRequestIDBytes {
			j.say("the id of a request has %d bytes, at most %d are accepted", len(result.id), MaxRequestIDBytes)
		}
	}
}

// judgeRendered judges what the topology's template was rendered to.
func (j *judge) judgeRendered() {
	r, source := j.rendered, j.fleet.GetTopology().GetSegmentsTemplate()
	switch {
	case r == nil:
		return
	case source == "":
		j.say("there are rendered segments, and no template")
	case !bytes.Equal(r.GetTemplate(), templateHash(source)):
		j.say("the rendered segments are of another template")
	case len(r.GetGroups()) != sha256.Size:
		j.say("the rendered segments are of no set of groups")
	case len(r.GetError()) > maxRenderedError:
		j.say("the error of the template has %d bytes, at most %d are accepted", len(r.GetError()), maxRenderedError)
	}
}

func (j *judge) group(group, format string, args ...any) {
	err := checkGroup(group)
	if group == "" {
		err = fmt.Errorf("%w: it is empty", ErrBadID)
	}
	if err != nil {
		j.say("the group of %s: %v", fmt.Sprintf(format, args...), err)
	}
}

// within judges a file by the cluster that it is to become the state of.
func (j *judge) within(present *meta, now time.Time) {
	for _, number := range []struct {
		what      string
		file, own uint64
	}{
		{"index", j.meta.Index, present.Index},
		{"term", j.meta.Term, present.Term},
		{"generation", j.meta.Generation, present.Generation},
	} {
		if number.file > maxRestoreStep && number.file-maxRestoreStep > number.own {
			j.say("the %s is %d, too far above %d, which is the cluster's", number.what, number.file, number.own)
		}
	}
	if ahead := j.meta.Clock.Sub(now); !now.IsZero() && ahead > maxClockStep {
		j.say("the clock is %s, more than a year ahead", j.meta.Clock.Format(time.RFC3339))
	}
}

// FleetProblems says what is wrong with a fleet configuration, a line each. Operators'
// changes and files from outside are judged by it: what this version does not serve
// would keep every node out.
func FleetProblems(config *slimcppb.FleetConfig) []string {
	var problems []string
	say := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	auth := config.GetRegistrationAuth()
	switch {
	case auth != "" && auth != NoAuth && auth != SharedSecret: // "" is none, too
		say("registration_auth %q: accepted are %q and %q", shorten(auth), NoAuth, SharedSecret)
	case auth != SharedSecret && len(config.GetSecrets()) > 0:
		say("secrets: accepted only with registration_auth %q", SharedSecret)
	case auth == SharedSecret && len(config.GetSecrets()) == 0 && FileTopology(config):
		say("secrets: at least one is needed beside a topology, since operators cannot add groups then")
	}
	if UsesTemplate(config) && len(config.GetTopology().GetSegments()) > 0 {
		say("'links', 'segments', and 'segments-template' are mutually exclusive in topology config")
	}
	for _, secret := range config.GetSecrets() {
		switch err := checkGroup(secret.GetGroup()); {
		case secret.GetGroup() == "":
			say("secrets: group must not be empty")
		case strings.Contains(secret.GetGroup(), ":") || strings.ContainsFunc(secret.GetGroup(), unicode.IsSpace):
			say("no token can name group %q: ':' and white space are not accepted beside shared secrets", shorten(secret.GetGroup()))
		case err != nil:
			say("secrets: %v", err)
		case secret.GetKeyId() == "" && len(secret.GetSecret()) < MinSecretBytes:
			say("secret of group '%s' is too short: at least %d bytes are accepted", secret.GetGroup(), MinSecretBytes)
		}
	}
	graces := config.GetGraces()
	for _, ms := range []uint64{
		graces.GetFailoverMs(), graces.GetDepartureMs(), graces.GetReplicaMs(),
		graces.GetDetachedMs(), graces.GetTombstoneMs(), graces.GetNodeRetentionMs(),
	} {
		if ms > math.MaxInt64/uint64(time.Millisecond) {
			say("a grace of %d ms is longer than a time can be", ms)
		}
	}
	return problems
}

// shorten cuts a value that is told to people, and says so.
func shorten(value string) string {
	if len(value) <= maxShownBytes {
		return value
	}
	return fmt.Sprintf("%s... (%d bytes)", strings.ToValidUTF8(value[:maxShownBytes], ""), len(value))
}

// configuration judges the fleet configuration of a file from outside.
func (j *judge) configuration() {
	for _, problem := range FleetProblems(j.fleet) {
		j.say("fleet configuration: %s", problem)
	}
	groups := len(j.TemplateGroups())
	if j.rendered.GetError() != "" || j.TemplateOutdated() {
		groups = 1 // the segments were made for others, of which "*" may link fewer
	}
	if err := checkRendered(j.rendered.GetSegments(), groups); err != nil {
		j.say("%v", err)
	}
}
