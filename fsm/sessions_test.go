package fsm

import (
	"testing"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func TestRegisterTwiceGivesTheFirstResult(t *testing.T) {
	h := meshed(t)
	name := h.sessionName()
	first := h.must(registerCommand(name, "a", "n1", "a.test:1"))
	h.register("b", "n1")
	h.stand()
	link := h.between("a", "b")

	again := h.must(registerCommand(name, "a", "n1", "a.test:1"))
	equal(t, "node of the repeated registration", again.NodeID, first.NodeID)
	equal(t, "epoch of the repeated registration", again.Epoch, first.Epoch)
	equal(t, "number of sessions", len(h.node("a/n1").Sessions), 1)
	equal(t, "link after the repeated registration", *h.between("a", "b"), *link)
}

func TestSessionLostBarsARegistrationUnderWay(t *testing.T) {
	h := meshed(t)
	name := h.sessionName()
	h.lose(name)
	h.refuse(registerCommand(name, "a", "n1", "a.test:1"), ErrSessionEnded)
	if _, known := h.view().Node("a/n1"); known {
		t.Error("a barred registration made a node")
	}
	h.register("a", "n1") // another stream of the node is welcome
}

func TestBarredNamesSurviveASnapshot(t *testing.T) {
	h := meshed(t)
	name := h.sessionName()
	h.lose(name)
	h.reopen()
	h.refuse(registerCommand(name, "a", "n1", "a.test:1"), ErrSessionEnded)
}

func TestLeaderStartedEndsOlderBootsOfItsReplica(t *testing.T) {
	h := meshed(t)
	oldBoot := SessionName{ReplicaID: "cp-1", BootID: "boot-0", Counter: 7}
	otherReplica := SessionName{ReplicaID: "cp-2", BootID: "boot-0", Counter: 7}
	h.must(registerCommand(oldBoot, "a", "n1", "a.test:1"))
	h.must(registerCommand(otherReplica, "b", "n1", "b.test:1"))
	current := h.register("c", "n1")

	h.must(leaderCommand(testTerm, "cp-1", "boot-1"))
	if h.node("a/n1").Connected() {
		t.Error("a session of an older boot lives on")
	}
	last := h.node("a/n1").LastSession
	equal(t, "last session", last.Name, oldBoot)
	equal(t, "why it ended", last.Reason, slimcppb.LossReason_LOSS_REASON_ENDED)
	equal(t, "session of another replica", h.commandSession("b/n1"), otherReplica)
	equal(t, "session of the present boot", h.commandSession("c/n1"), current)
	equal(t, "leader's term", h.view().LeaderTerm(), testTerm)
}

func TestTheNewestSessionIsTheCommandSession(t *testing.T) {
	h := meshed(t)
	first := h.sessionName()
	h.must(registerCommand(first, "a", "n1", "old.test:1"))
	second := h.sessionName()
	h.must(registerCommand(second, "a", "n1", "new.test:1"))
	equal(t, "command session", h.commandSession("a/n1"), second)
	equal(t, "endpoint", h.node("a/n1").Details[0].ExternalEndpoint, "new.test:1")

	h.lose(first)
	equal(t, "command session after the older one ended", h.commandSession("a/n1"), second)
}

func TestAnOlderSessionTakesOverWhenTheNewestEnds(t *testing.T) {
	h := meshed(t)
	first := h.sessionName()
	h.must(registerCommand(first, "a", "n1", "old.test:1"))
	second := h.sessionName()
	h.must(registerCommand(second, "a", "n1", "new.test:1"))
	h.confirm("a/n1")
	if h.node("a/n1").Acked == 0 {
		t.Fatal("nothing confirmed")
	}

	h.lose(second)
	node := h.node("a/n1")
	equal(t, "command session", h.commandSession("a/n1"), first)
	equal(t, "endpoint", node.Details[0].ExternalEndpoint, "old.test:1")
	equal(t, "confirmed index", node.Acked, 0)
}

func TestAProvisionalSessionRanksByItsOwnEpoch(t *testing.T) {
	h := meshed(t)
	atReading := h.view().Index()
	committed := h.register("a", "n1")
	late := registerCommand(h.sessionName(), "a", "n1", "late.test:1")
	late.GetRegisterNode().ProvisionalEpoch = atReading
	result := h.must(late)
	equal(t, "epoch", result.Epoch, atReading)
	equal(t, "command session", h.commandSession("a/n1"), committed)
	equal(t, "endpoint", h.node("a/n1").Details[0].ExternalEndpoint, "a-n1.test:1")
	equal(t, "number of sessions", len(h.node("a/n1").Sessions), 2)
}

func TestSequenceNumbersPassOnce(t *testing.T) {
	h := meshed(t)
	h.register("a", "n1")
	b := h.register("b", "n1")
	x, y := appName("x", 1), appName("y", 1)

	h.must(announceCommand(b, 1, announcing(x)...))
	h.refuse(announceCommand(b, 1, withdrawing(x)...), ErrStaleSequence)
	if len(h.announcers(x)) != 1 {
		t.Error("a repeated number took effect")
	}
	// Claims count on the same counter.
	h.refuse(claimCommand(b, 1, h.between("a", "b").ID, "m"), ErrStaleSequence)
	h.must(claimCommand(b, 2, h.between("a", "b").ID, "m"))
	h.refuse(announceCommand(b, 2, announcing(y)...), ErrStaleSequence)
	h.must(announceCommand(b, 5, announcing(y)...))
	h.refuse(announceCommand(b, 4, withdrawing(y)...), ErrStaleSequence)
	// Numbers belong to a session.
	h.must(announceCommand(h.register("b", "n1"), 1, announcing(y)...))
}

func TestAnUnknownSessionSaysNothing(t *testing.T) {
	h := meshed(t)
	session := h.register("a", "n1")
	h.register("b", "n1")
	h.lose(session)
	x := appName("x", 1)
	h.refuse(announceCommand(session, 1, announcing(x)...), ErrUnknownSession)
	h.refuse(claimCommand(session, 1, h.between("a", "b").ID, "m"), ErrUnknownSession)
	h.refuse(deregisterCommand(session), ErrUnknownSession)
	h.refuse(announceCommand(SessionName{}, 1, announcing(x)...), ErrUnknownSession)
	if len(h.announcers(x)) != 0 {
		t.Error("a session that ended announced a name")
	}
}

func TestAckedBelongsToTheCommandSession(t *testing.T) {
	h := meshed(t)
	first := h.register("a", "n1")
	h.must(reconciledCommand("a/n1", first, 3))
	equal(t, "confirmed index", h.node("a/n1").Acked, 3)
	h.must(reconciledCommand("a/n1", first, 2))
	equal(t, "confirmed index after an older answer", h.node("a/n1").Acked, 3)

	second := h.register("a", "n1")
	equal(t, "confirmed index of a new session", h.node("a/n1").Acked, 0)
	h.refuse(reconciledCommand("a/n1", first, 4), ErrStale)
	equal(t, "confirmed index after the old session's answer", h.node("a/n1").Acked, 0)
	h.refuse(observedCommand("a/n1", first), ErrStale)
	h.must(reconciledCommand("a/n1", second, 4))
	equal(t, "confirmed index", h.node("a/n1").Acked, 4)
	h.refuse(reconciledCommand("a/n9", second, 4), ErrUnknownNode)
}

func TestAnIndexThatIsNotReachedConfirmsNoMoreThanIsThere(t *testing.T) {
	h := meshed(t)
	session := h.register("a", "n1")
	result := h.must(reconciledCommand("a/n1", session, 1<<40))
	equal(t, "confirmed index", h.node("a/n1").Acked, result.Index)
}

// A quick reconnect overtakes the end of the stream before it: what ends the old
// session must not touch what the new one has.
func TestALateEndOfAnOldSessionTouchesNothing(t *testing.T) {
	h := meshed(t)
	old := h.register("a", "n1")
	h.register("a", "n2")
	b := h.register("b", "n1")
	h.stand()
	x := appName("x", 1)
	current := h.register("a", "n1", &slimcppb.ReportedLink{LinkId: h.between("a", "b").ID, Incoming: true})
	h.announce(current, x)
	link := *h.between("a", "b")

	h.lose(old)
	h.refuse(departCommand("a/n1", old), ErrStale)
	equal(t, "link", *h.between("a", "b"), link)
	equal(t, "command session", h.commandSession("a/n1"), current)
	if len(h.announcers(x)) != 1 {
		t.Error("the name is gone")
	}
	equal(t, "session of the peer", h.commandSession("b/n1"), b)
	h.check()
}

func TestSessionLostKeepsItsReason(t *testing.T) {
	for _, reason := range []slimcppb.LossReason{
		slimcppb.LossReason_LOSS_REASON_ENDED, slimcppb.LossReason_LOSS_REASON_UNREACHABLE, slimcppb.LossReason_LOSS_REASON_DRAINING,
	} {
		h := meshed(t)
		session := h.register("a", "n1")
		lost := lostCommand(session)
		lost.GetSessionLost().Reason = reason
		result := h.must(lost)
		last := h.node("a/n1").LastSession
		equal(t, "reason", last.Reason, reason)
		equal(t, "session", last.Name, session)
		equal(t, "index", last.Index, result.Index)
		equal(t, "time", last.At, h.view().Clock())
		h.register("a", "n1")
		equal(t, "last session of a connected node", h.node("a/n1").LastSession, LostSession{})
	}
}

func TestARegistrationWithoutASessionNameIsInvalid(t *testing.T) {
	h := meshed(t)
	h.refuse(registerCommand(SessionName{}, "a", "n1", ""), ErrInvalid)
	h.refuse(lostCommand(SessionName{}), ErrInvalid)
}
