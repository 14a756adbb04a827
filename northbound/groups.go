package northbound

import (
	"context"
	"fmt"
	"slices"

	"github.com/slim-cp/slim-cp/fsm"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// ListDomains answers by name with the groups that have a node, connected or
// not, or a registration secret, and with all their nodes.
func (s *Service) ListDomains(ctx context.Context, _ *controlplanepb.ListDomainsRequest) (*controlplanepb.ListDomainsResponse, error) {
	view, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	names := view.SecretGroups()
	for group := range view.Groups() {
		if group.Name != "" { // nodes without a group
			names = append(names, group.Name)
		}
	}
	slices.Sort(names)
	response := &controlplanepb.ListDomainsResponse{}
	for _, name := range slices.Compact(names) {
		response.Domains = append(response.Domains, &controlplanepb.DomainEntry{
			DomainName: name,
			Nodes:      slices.Collect(view.Members(name)),
		})
	}
	return response, nil
}

// ListGroups is ListDomains under its older name.
func (s *Service) ListGroups(ctx context.Context, request *controlplanepb.ListDomainsRequest) (*controlplanepb.ListDomainsResponse, error) {
	return s.ListDomains(ctx, request)
}

// AddDomain sets the registration secret of a group, in place of an earlier one.
// Nodes that have registered stay.
func (s *Service) AddDomain(ctx context.Context, request *controlplanepb.AddDomainRequest) (*controlplanepb.AddDomainResponse, error) {
	name, secret := request.GetDomainName(), request.GetSecret()
	texts := map[error]string{
		fsm.ErrNotSharedSecret: "add_domain is only supported in shared_secret auth mode",
		fsm.ErrShortSecret:     fmt.Sprintf("secret of domain '%s' is too short: at least %d bytes are accepted", shown(name), fsm.MinSecretBytes),
	}
	_, err := s.mutate(ctx, mutation{
		action:  "add group",
		subject: []any{"group", name},
		// Looking first keeps the secret of a refused command out of the log.
		judge: func(view *fsm.View) error {
			switch {
			case view.ConfigManaged():
				return fsm.ErrConfigManaged
			case view.Fleet().GetRegistrationAuth() != fsm.SharedSecret:
				return fsm.ErrNotSharedSecret
			case name == "":
				return argumentError("domain_name must not be empty")
			case secret == "":
				return argumentError("secret must not be empty")
			case len(secret) < fsm.MinSecretBytes:
				return fsm.ErrShortSecret
			}
			return checkSecretGroup(name)
		},
		command: &slimcppb.Command{Payload: &slimcppb.Command_AddGroup{AddGroup: &slimcppb.AddGroup{
			Secret: &slimcppb.GroupSecret{Group: name, Secret: []byte(secret)},
		}}},
		texts: texts,
	})
	return &controlplanepb.AddDomainResponse{}, err
}

// AddGroup is AddDomain under its older name.
func (s *Service) AddGroup(ctx context.Context, request *controlplanepb.AddDomainRequest) (*controlplanepb.AddDomainResponse, error) {
	return s.AddDomain(ctx, request)
}

// RemoveDomain drops the registration secret of a group and evicts its nodes
// (protocol D5). A group that is not there is no error.
func (s *Service) RemoveDomain(ctx context.Context, request *controlplanepb.RemoveDomainRequest) (*controlplanepb.RemoveDomainResponse, error) {
	name := request.GetDomainName()
	_, err := s.mutate(ctx, mutation{
		action:  "remove group",
		subject: []any{"group", name},
		judge: func(view *fsm.View) error {
			switch {
			case view.ConfigManaged():
				return fsm.ErrConfigManaged
			case name == "":
				// Nodes without a group must not be taken for its members.
				return argumentError("domain_name must not be empty")
			}
			return checkLength("domain_name", name)
		},
		command: &slimcppb.Command{Payload: &slimcppb.Command_RemoveGroup{RemoveGroup: &slimcppb.RemoveGroup{Group: name}}},
		texts:   map[error]string{fsm.ErrNotSharedSecret: "remove_domain is only supported in shared_secret auth mode"},
	})
	return &controlplanepb.RemoveDomainResponse{}, err
}

// RemoveGroup is RemoveDomain under its older name.
func (s *Service) RemoveGroup(ctx context.Context, request *controlplanepb.RemoveDomainRequest) (*controlplanepb.RemoveDomainResponse, error) {
	return s.RemoveDomain(ctx, request)
}
