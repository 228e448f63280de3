import hmc.v1.TranslationServiceGrpc;
import hmc.v1.TranslationOuterClass.TranslateRequest;
import hmc.v1.TranslationOuterClass.TranslateStreamRequest;
import hmc.v1.TranslationOuterClass.TranslateStreamResponse;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import java.io.File;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;

/**
 * Translates texts with one call, and then as a stream; one answer a line.
 *
 * <pre>java Client HOST:PORT TEXT [TEXT ...]</pre>
 *
 * HMC_TOKEN: the server's token. HMC_CA: PEM file of the authorities that signed its certificate; without it, no TLS.
 */
public final class Client {
  private static final long DEADLINE_S = 30;

  /** gRPC waits as long as the server's grpc-retry-pushback-ms says, and sends nothing again if it says -1. */
  private static final Map<String, ?> CONFIG =
      Map.of(
          "methodConfig",
          List.of(
              Map.of(
                  "name", List.of(Map.of("service", "hmc.v1.TranslationService")),
                  "retryPolicy",
                      Map.of(
                          "maxAttempts", 5.0,
                          "initialBackoff", "0.1s",
                          "maxBackoff", "5s",
                          "backoffMultiplier", 2.0,
                          "retryableStatusCodes", List.of("UNAVAILABLE", "RESOURCE_EXHAUSTED")))));

  public static void main(String[] arguments) throws Exception {
    if (arguments.length < 2) {
      System.err.println("usage: java Client HOST:PORT TEXT [TEXT ...]");
      System.exit(2);
    }
    ManagedChannel channel = channel(arguments[0], System.getenv("HMC_CA"));
    int code = 0;
    try {
      run(channel, Arrays.asList(arguments).subList(1, arguments.length));
    } catch (StatusRuntimeException error) {
      System.err.println(error.getStatus().getCode() + ": " + error.getStatus().getDescription());
      code = 1;
    } finally {
      channel.shutdownNow().awaitTermination(5, TimeUnit.SECONDS);
    }
    System.exit(code);
  }

  private static ManagedChannel channel(String address, String authorities) throws Exception {
    NettyChannelBuilder builder =
        NettyChannelBuilder.forTarget(address).defaultServiceConfig(CONFIG).enableRetry();
    if (authorities == null) {
      return builder.usePlaintext().build();
    }
    return builder
        .sslContext(GrpcSslContexts.forClient().trustManager(new File(authorities)).build())
        .build();
  }

  private static void run(ManagedChannel channel, List<String> texts) throws Exception {
    Metadata metadata = new Metadata();
    String token = System.getenv("HMC_TOKEN");
    if (token != null) {
      metadata.put(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), "Bearer " + token);
    }
    var withToken = MetadataUtils.newAttachHeadersInterceptor(metadata);

    var answer =
        TranslationServiceGrpc.newBlockingStub(channel)
            .withInterceptors(withToken)
            .withDeadlineAfter(DEADLINE_S, TimeUnit.SECONDS)
            .translate(TranslateRequest.newBuilder().addTexts(texts.get(0)).build());
    System.out.println("call\t" + answer.getTranslations(0).getText());

    var stub =
        TranslationServiceGrpc.newStub(channel)
            .withInterceptors(withToken)
            .withDeadlineAfter(DEADLINE_S, TimeUnit.SECONDS);
    var answers = new Answers(texts.size());
    StreamObserver<TranslateStreamRequest> requests = stub.translateStream(answers);
    for (int index = 0; index < texts.size(); index++) {
      requests.onNext(
          TranslateStreamRequest.newBuilder().setId(Integer.toString(index)).setText(texts.get(index)).build());
    }
    requests.onCompleted();
    try {
      for (String text : answers.all.join()) {
        System.out.println("stream\t" + text);
      }
    } catch (CompletionException error) {
      throw error.getCause() instanceof StatusRuntimeException status ? status : error;
    }
  }

  /** Puts answers, which come as they are ready, in the order of the texts. */
  private static final class Answers implements StreamObserver<TranslateStreamResponse> {
    final CompletableFuture<String[]> all = new CompletableFuture<>();
    private final String[] translations;

    Answers(int count) {
      translations = new String[count];
    }

    @Override
    public void onNext(TranslateStreamResponse answer) {
      if (answer.hasError()) {
        all.completeExceptionally(
            io.grpc.Status.fromCodeValue(answer.getError().getCode())
                .withDescription("text " + answer.getId() + ": " + answer.getError().getMessage())
                .asRuntimeException());
        return;
      }
      translations[Integer.parseInt(answer.getId())] = answer.getTranslation().getText();
    }

    @Override
    public void onError(Throwable error) {
      all.completeExceptionally(error);
    }

    @Override
    public void onCompleted() {
      all.complete(translations);
    }
  }
}
