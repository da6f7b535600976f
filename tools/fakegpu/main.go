// A device plugin whose devices are only names. Kubernetes treats a node with it as a node with GPUs.
//
// It implements the kubelet's device plugin API v1beta1, so scheduling, admission and allocation are the real ones.
// Each container gets its devices in NVIDIA_VISIBLE_DEVICES, as from NVIDIA's plugin.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	endpoint = "fakegpu.sock"
	patience = 30 * time.Second
)

type plugin struct {
	api.UnimplementedDevicePluginServer
	devices []*api.Device
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// Sends all devices once, because they never change. The kubelet removes them when the stream ends.
func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	if err := stream.Send(&api.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		ids := strings.Join(container.DevicesIds, ",")
		log.Printf("allocated %s", ids)
		envs := map[string]string{"NVIDIA_VISIBLE_DEVICES": ids}
		answer.ContainerResponses = append(answer.ContainerResponses, &api.ContainerAllocateResponse{Envs: envs})
	}
	return answer, nil
}

func main() {
	resource := flag.String("resource", "nvidia.com/gpu", "name of the extended resource")
	count := flag.Int("count", 1, "number of devices")
	folder := flag.String("folder", api.DevicePluginPath, "folder of the kubelet's socket")
	flag.Parse()
	log.Fatal(run(*resource, *count, *folder))
}

// Serves until it fails. A kubelet that restarts forgets its plugins and empties the folder. Then this fails too, so
// that the pod restarts it.
func run(resource string, count int, folder string) error {
	devices := &plugin{}
	for number := range count {
		id := fmt.Sprintf("GPU-fake-%d", number)
		devices.devices = append(devices.devices, &api.Device{ID: id, Health: api.Healthy})
	}
	socket := filepath.Join(folder, endpoint)
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, devices)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	if err := register(resource, filepath.Join(folder, filepath.Base(api.KubeletSocket))); err != nil {
		return err
	}
	log.Printf("registered %d %s", count, resource)
	for {
		select {
		case err := <-failed:
			return err
		case <-time.After(time.Second):
			if _, err := os.Stat(socket); err != nil {
				return fmt.Errorf("the kubelet restarted: %w", err)
			}
		}
	}
}

func register(resource, kubelet string) error {
	connection, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version:      api.Version,
		Endpoint:     endpoint,
		ResourceName: resource,
	}, grpc.WaitForReady(true))
	return err
}
