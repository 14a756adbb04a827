package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/cmd/operator/fleetconfig"
	"github.com/slim-cp/slim-cp/config"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/northbound"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// presentTimeout bounds each step of presenting the file to the cluster.
const presentTimeout = 15 * time.Second

// presentPause is the wait before the file is presented again.
const presentPause = time.Second

// state is what a presenter needs of a replica.
type state interface {
	ReplicaID() string
	// Read is linearizable: without a leader it fails.
	Read(ctx context.Context) (*fsm.View, error)
	View() *fsm.View
	Propose(ctx context.Context, command *slimcppb.Command) (fsm.Result, error)
}

// presenter keeps what this replica's file says of the fleet and what is active
// in the cluster apart (protocol T2). The file is presented only when it has
// changed: a restart must not undo what was applied since.
type presenter struct {
	state  state
	logger hclog.Logger
	load   func() (*config.Config, error) // reads the file

	mu        sync.Mutex
	wanted    *slimcppb.FleetConfig // by the file as it was read last
	reloading bool                  // wanted and the active document change, one after the other
	compared  uint64                // revision of the active document that was compared last
	differs   bool                  // in the way in which nodes register
	// pending is why the file is not active, pendingUntil what it waits for, and
	// pendingAuth how nodes registered when it was read.
	pending      []string
	pendingUntil string
	pendingAuth  string
}

func newPresenter(state state, settings *config.Config, load func() (*config.Config, error), logger hclog.Logger) *presenter {
	return &presenter{state: state, logger: logger, load: load, wanted: fleetconfig.FromSettings(settings)}
}

// start presents the file if it is not the one that this replica presented last.
// A replica that is new presents it only to a cluster without a fleet
// configuration.
func (p *presenter) start(ctx context.Context) error {
	view, err := p.read(ctx)
	if err != nil {
		return err
	}
	wanted := p.file()
	record, known := view.Replica(p.state.ReplicaID())
	// The record alone says only that the replica has started.
	presented := known && record.Presented()
	switch {
	case presented && bytes.Equal(record.Fingerprint, fingerprint(wanted)):
		return nil
	case presented || view.FleetRevision() == 0:
		err := p.activate(ctx, view, wanted)
		if errors.Is(err, errPending) {
			p.logger.Error("the changed configuration file is not active", "reason", err)
			return nil
		}
		return err
	}
	return p.propose(ctx, &slimcppb.SetFleetConfig{Fingerprint: fingerprint(wanted)})
}

// present is start for a replica whose leader may be gone for a while. It returns
// nil too when the context has ended.
func (p *presenter) present(ctx context.Context) error {
	for {
		err := p.start(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if !passes(err) {
			return err
		}
		p.logger.Warn("the file was not presented yet", "error", err)
		select {
		case <-time.After(presentPause):
		case <-ctx.Done():
			return nil
		}
	}
}

// passes reports whether an error may be gone at the next attempt. The file may be
// presented again when it is not known whether it was.
func passes(err error) bool {
	for _, passing := range []error{
		cluster.ErrNoLeader, cluster.ErrNotLeader, cluster.ErrOverloaded, cluster.ErrUnknownOutcome,
		fsm.ErrStaleGeneration, fsm.ErrGroupsChanged, context.DeadlineExceeded,
	} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// reload reads the file again and makes what it says of the fleet the active
// configuration. A file with mistakes changes nothing. It never fails: what went
// wrong is in the log.
func (p *presenter) reload(ctx context.Context) {
	settings, err := p.load()
	if err != nil {
		var refused config.Errors
		if errors.As(err, &refused) {
			for _, warning := range refused.Warnings() {
				p.logger.Warn(warning)
			}
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			p.logger.Error("configuration file is not taken over", "problem", line)
		}
		return
	}
	for _, warning := range settings.Warnings {
		p.logger.Warn(warning)
	}
	err = p.replace(ctx, fleetconfig.FromSettings(settings))
	switch {
	case errors.Is(err, errPending):
		p.logger.Error("configuration file was read and is not active", "reason", err)
		return
	case err != nil:
		p.logger.Error("configuration file was read and is not active yet, send SIGHUP again", "error", err)
		return
	}
	p.logger.Info("configuration file was read again; what it says beside the fleet configuration counts from the next start")
}

// replace takes another file over.
func (p *presenter) replace(ctx context.Context, wanted *slimcppb.FleetConfig) error {
	p.mu.Lock()
	p.wanted, p.reloading, p.compared = wanted, true, 0
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.reloading = false
	}()
	const attempts = 5 // groups may come and go while a template is rendered
	for attempt := 1; ; attempt++ {
		view, err := p.read(ctx)
		if err != nil {
			return err
		}
		if err = p.activate(ctx, view, wanted); attempt == attempts || !errors.Is(err, fsm.ErrGroupsChanged) {
			return err
		}
	}
}

// activate makes the file's fleet configuration the active one, and notes that it
// was presented. What is active or noted already is not proposed.
func (p *presenter) activate(ctx context.Context, view *fsm.View, wanted *slimcppb.FleetConfig) error {
	command := &slimcppb.SetFleetConfig{Fingerprint: fingerprint(wanted)}
	record, known := view.Replica(p.state.ReplicaID())
	presented := known && bytes.Equal(record.Fingerprint, command.Fingerprint)
	if presented {
		var removed []string
		if wanted, removed = withoutRemoved(view.Fleet(), wanted); len(removed) > 0 {
			p.logger.Warn("groups of the file were removed since it was presented and stay so: add them again, change their secrets in the file, or apply it",
				"groups", removed)
		}
	}
	same := view.FleetRevision() > 0 && proto.Equal(view.Fleet(), wanted)
	if !same {
		command.Config = wanted
	}
	var err error
	if command.Rendered, err = northbound.RenderSegments(ctx, view, command.GetConfig()); err != nil {
		return p.wait(view, "the template is corrected", err.Error())
	}
	if fsm.UsesTemplate(command.GetConfig()) && view.ActiveSchema() < fsm.TemplateSchema {
		return p.wait(view, "the upgrade is finalized", fmt.Sprintf("segments-template needs schema %d", fsm.TemplateSchema))
	}
	if err := p.judge(view, command); err != nil || same && presented {
		return err
	}
	return p.propose(ctx, command)
}

// errPending is wrapped by errors about a file that waits until an operator insists
// on it.
var errPending = errors.New("pending")

// judge refuses a document that takes away what a file must not take away by
// accident: it may be empty because it is being written, and nobody asked. It
// waits, and what is active stays, until an operator applies it with force.
func (p *presenter) judge(view *fsm.View, command *slimcppb.SetFleetConfig) error {
	var losses []string
	if wanted := command.GetConfig(); wanted != nil && view.FleetRevision() > 0 {
		losses = view.FleetChange(wanted, command.GetRendered()).Losses()
	}
	return p.wait(view, "it is applied with slim-cp topology apply --force", losses...)
}

// wait notes until when the file is pending, and why; without a reason it is not.
func (p *presenter) wait(view *fsm.View, until string, reasons ...string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending, p.pendingUntil = reasons, until
	p.pendingAuth, p.compared = view.Fleet().GetRegistrationAuth(), 0
	if len(reasons) == 0 {
		return nil
	}
	return fmt.Errorf("%w until %s: %s", errPending, until, strings.Join(reasons, "; "))
}

// withoutRemoved returns what a file that was presented before still asks for:
// without the secrets of groups that an operator removed since, and these groups.
// A removal evicts nodes, so nothing but a word about the groups may undo it
// (protocol T2). Only where the API manages the topology can groups be removed.
func withoutRemoved(active, wanted *slimcppb.FleetConfig) (kept *slimcppb.FleetConfig, removed []string) {
	for _, fleet := range []*slimcppb.FleetConfig{active, wanted} {
		if fleet.GetRegistrationAuth() != fsm.SharedSecret || fsm.FileTopology(fleet) {
			return wanted, nil
		}
	}
	admitted := make(map[string]struct{}, len(active.GetSecrets()))
	for _, secret := range active.GetSecrets() {
		admitted[secret.GetGroup()] = struct{}{}
	}
	kept = proto.CloneOf(wanted)
	kept.Secrets = slices.DeleteFunc(kept.GetSecrets(), func(secret *slimcppb.GroupSecret) bool {
		_, ok := admitted[secret.GetGroup()]
		if !ok {
			removed = append(removed, secret.GetGroup())
		}
		return !ok
	})
	return kept, removed
}

func (p *presenter) propose(ctx context.Context, command *slimcppb.SetFleetConfig) error {
	ctx, cancel := context.WithTimeout(ctx, presentTimeout)
	defer cancel()
	command.ReplicaId = p.state.ReplicaID()
	proposal := &slimcppb.Command{Payload: &slimcppb.Command_SetFleetConfig{SetFleetConfig: command}}
	if fsm.UsesTemplate(command.GetConfig()) {
		proposal.Schema = fsm.TemplateSchema
	}
	result, err := p.state.Propose(ctx, proposal)
	if err := errors.Join(err, result.Err); err != nil {
		return fmt.Errorf("present the fleet configuration: %w", err)
	}
	if command.GetConfig() != nil {
		p.logger.Info("fleet configuration of the file is active", "index", result.Index)
	}
	return nil
}

func (p *presenter) read(ctx context.Context) (*fsm.View, error) {
	ctx, cancel := context.WithTimeout(ctx, presentTimeout)
	defer cancel()
	view, err := p.state.Read(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the active fleet configuration: %w", err)
	}
	return view, nil
}

func (p *presenter) file() *slimcppb.FleetConfig {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wanted
}

// otherAuth reports whether nodes register in another way than the file says:
// such a replica must not listen to them (protocol T2). It logs, once for each
// active document, what differs from the file.
func (p *presenter) otherAuth() bool {
	view := p.state.View()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reloading || view.FleetRevision() == p.compared {
		return p.differs
	}
	active := view.Fleet()
	p.compared = view.FleetRevision()
	waits := len(p.pending) > 0 && active.GetRegistrationAuth() == p.pendingAuth // as before
	p.differs = active.GetRegistrationAuth() != p.wanted.GetRegistrationAuth() && !waits
	if differing := differences(active, p.wanted); len(differing) > 0 {
		p.logger.Warn("the active fleet configuration is not that of this replica's file",
			"differing", differing, "active_since_index", p.compared)
	}
	return p.differs
}

// note says how the active document differs from this replica's file, "" if it
// does not.
func (p *presenter) note() string {
	active := p.state.View()
	if active.FleetRevision() == 0 {
		return ""
	}
	p.mu.Lock()
	wanted, pending, until := p.wanted, p.pending, p.pendingUntil
	p.mu.Unlock()
	differing := differences(active.Fleet(), wanted)
	switch {
	case len(differing) == 0:
		return ""
	case len(pending) > 0:
		return "pending: this replica's file is not active until " + until + ": " + strings.Join(pending, "; ")
	}
	return "the active fleet configuration is not that of this replica's file: " + strings.Join(differing, ", ")
}

// differences names the parts in which two documents differ. Values are not
// told: there are secrets among them.
func differences(a, b *slimcppb.FleetConfig) []string {
	var names []string
	left, right := a.ProtoReflect(), b.ProtoReflect()
	fields := left.Descriptor().Fields()
	for i := range fields.Len() {
		if field := fields.Get(i); left.Has(field) != right.Has(field) || !left.Get(field).Equal(right.Get(field)) {
			names = append(names, string(field.Name()))
		}
	}
	return names
}

// fingerprint tells a file's fleet configuration from others.
func fingerprint(config *slimcppb.FleetConfig) []byte {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(config)
	if err != nil {
		return nil // strings that are not UTF-8, which no file can hold: equal to none
	}
	sum := sha256.Sum256(encoded)
	return sum[:]
}
