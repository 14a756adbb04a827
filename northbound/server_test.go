package northbound

import (
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

func TestHealthFollowsReadiness(t *testing.T) {
	const (
		serving    = grpc_health_v1.HealthCheckResponse_SERVING
		notServing = grpc_health_v1.HealthCheckResponse_NOT_SERVING
	)
	operator := newFleet(t).operator(t)
	want := func(status grpc_health_v1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for _, service := range []string{"", "controlplane.proto.v1.ControlPlaneService", "slimcp.v1.ClusterService", "controller.proto.v1.ControllerService"} {
			response, err := grpc_health_v1.NewHealthClient(operator.connection).
				Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service})
			if err != nil || response.GetStatus() != status {
				t.Errorf("service %q: %v, %v, want %v", service, response, err, status)
			}
		}
	}
	want(notServing)
	operator.health.SetReady(true)
	want(serving)
	operator.health.SetReady(false)
	want(notServing)
	operator.health.SetReady(true)
	operator.health.Shutdown()
	want(notServing)
	operator.health.SetReady(true)
	want(notServing)
}

// services are what reflection lists.
func services(tb testing.TB, connection *grpc.ClientConn) []string {
	tb.Helper()
	stream, err := grpc_reflection_v1.NewServerReflectionClient(connection).ServerReflectionInfo(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	request := &grpc_reflection_v1.ServerReflectionRequest{
		MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{ListServices: ""},
	}
	if err := stream.Send(request); err != nil {
		tb.Fatal(err)
	}
	response, err := stream.Recv()
	if err != nil {
		tb.Fatal(err)
	}
	var names []string
	for _, service := range response.GetListServicesResponse().GetService() {
		names = append(names, service.GetName())
	}
	return names
}

func TestReflection(t *testing.T) {
	names := services(t, newFleet(t).operator(t).connection)
	for _, want := range []string{"controlplane.proto.v1.ControlPlaneService", "slimcp.v1.ClusterService", "grpc.health.v1.Health"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is not among %q", want, names)
		}
	}
}

// The southbound port has health and reflection as well.
func TestIntrospectionOfAnotherServer(t *testing.T) {
	server := grpc.NewServer()
	controllerpb.RegisterControllerServiceServer(server, controllerpb.UnimplementedControllerServiceServer{})
	health := NewHealth()
	health.SetReady(true)
	RegisterIntrospection(server, health)
	connection := connect(t, server)
	if names := services(t, connection); !slices.Contains(names, "controller.proto.v1.ControllerService") {
		t.Errorf("the service is not among %q", names)
	}
	response, err := grpc_health_v1.NewHealthClient(connection).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil || response.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("%v, %v", response, err)
	}
}
