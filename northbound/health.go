package northbound

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// Health answers the gRPC health protocol on every port of a replica, for the
// replica as a whole (the empty service name) and for each of its services.
type Health struct {
	server *health.Server
}

// NewHealth returns a Health that is not serving yet.
func NewHealth() *Health {
	h := &Health{server: health.NewServer()}
	h.SetReady(false)
	return h
}

// SetReady says whether the replica serves. Those who watch are told.
func (h *Health) SetReady(ready bool) {
	status := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if ready {
		status = grpc_health_v1.HealthCheckResponse_SERVING
	}
	for _, service := range []string{
		"",
		controlplanepb.ControlPlaneService_ServiceDesc.ServiceName,
		slimcppb.ClusterService_ServiceDesc.ServiceName,
		controllerpb.ControllerService_ServiceDesc.ServiceName,
	} {
		h.server.SetServingStatus(service, status)
	}
}

// Shutdown answers "not serving" from now on, whatever SetReady says.
func (h *Health) Shutdown() { h.server.Shutdown() }

// RegisterIntrospection adds health and reflection to a gRPC server that does
// not serve yet. Every gRPC port has both.
func RegisterIntrospection(server *grpc.Server, health *Health) {
	grpc_health_v1.RegisterHealthServer(server, health.server)
	reflection.Register(server)
}
