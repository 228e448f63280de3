// Client translates texts with one call, and then as a stream; one answer a line.
//
//	client HOST:PORT TEXT [TEXT ...]
//
// HMC_TOKEN: the server's token. HMC_CA: PEM file of the authorities that signed its certificate; without it, no TLS.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	pb "hmc.example/client/hmc/v1"
)

const deadline = 30 * time.Second

// gRPC waits as long as the server's grpc-retry-pushback-ms says, and sends nothing again if it says -1.
const config = `{"methodConfig": [{
  "name": [{"service": "hmc.v1.TranslationService"}],
  "retryPolicy": {
    "maxAttempts": 5, "initialBackoff": "0.1s", "maxBackoff": "5s", "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"]
  }
}]}`

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: client HOST:PORT TEXT [TEXT ...]")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(address string, texts []string) error {
	security := grpc.WithInsecure()
	if authorities := os.Getenv("HMC_CA"); authorities != "" {
		trusted, err := credentials.NewClientTLSFromFile(authorities, "")
		if err != nil {
			return err
		}
		security = grpc.WithTransportCredentials(trusted)
	}
	connection, err := grpc.Dial(address, security, grpc.WithDefaultServiceConfig(config))
	if err != nil {
		return err
	}
	defer connection.Close()
	client := pb.NewTranslationServiceClient(connection)

	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if token := os.Getenv("HMC_TOKEN"); token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}

	answer, err := client.Translate(ctx, &pb.TranslateRequest{Texts: texts[:1]})
	if err != nil {
		return err
	}
	fmt.Printf("call\t%s\n", answer.Translations[0].Text)

	translations, err := stream(ctx, client, texts)
	for _, text := range translations {
		fmt.Printf("stream\t%s\n", text)
	}
	return err
}

// stream sends the texts while it receives the answers, which come as they are ready.
func stream(ctx context.Context, client pb.TranslationServiceClient, texts []string) ([]string, error) {
	ctx, cancel := context.WithCancel(ctx) // ends the sender too if an answer is an error
	defer cancel()
	call, err := client.TranslateStream(ctx)
	if err != nil {
		return nil, err
	}
	go func() {
		for index, text := range texts {
			request := &pb.TranslateStreamRequest{Id: strconv.Itoa(index), Text: text}
			if call.Send(request) != nil {
				return // Recv has the reason
			}
		}
		call.CloseSend()
	}()
	translations := make([]string, len(texts))
	for {
		answer, err := call.Recv()
		if err == io.EOF {
			return translations, nil
		}
		if err != nil {
			return nil, err
		}
		if failed := answer.GetError(); failed != nil {
			return nil, fmt.Errorf("text %s: %s", answer.Id, failed.Message)
		}
		index, err := strconv.Atoi(answer.Id)
		if err != nil {
			return nil, err
		}
		translations[index] = answer.GetTranslation().Text
	}
}
