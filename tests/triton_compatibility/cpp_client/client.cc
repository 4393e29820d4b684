// A C++ client of the V2 protocol over gRPC and HTTP, with the channel arguments and the calls of Triton's C++ client:
// unary, asynchronous and streaming inference, compression, deadlines, cancellation, keepalive, and libcurl.
//
//   client GRPC_ADDRESS HTTP_URL
//
// Prints one line per step, "STEP: OUTCOME". The model `echo` returns its input x; `delayed` does so after x[0] seconds.

#include <curl/curl.h>
#include <grpcpp/grpcpp.h>
#include <zlib.h>

#include <chrono>
#include <climits>
#include <cstring>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "inference/service.grpc.pb.h"

using inference::GRPCInferenceService;
using inference::ModelInferRequest;
using inference::ModelInferResponse;
using inference::ModelStreamInferResponse;

namespace {

const std::vector<std::pair<std::string, grpc_compression_algorithm>> kAlgorithms = {
    {"none", GRPC_COMPRESS_NONE}, {"deflate", GRPC_COMPRESS_DEFLATE}, {"gzip", GRPC_COMPRESS_GZIP}};

std::shared_ptr<grpc::Channel> Connect(const std::string& address, int keepalive_ms, bool permit_without_calls) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxSendMessageSize(INT_MAX);
  arguments.SetMaxReceiveMessageSize(INT_MAX);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, permit_without_calls);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

ModelInferRequest Request(const std::string& model, const std::vector<float>& values) {
  ModelInferRequest request;
  request.set_model_name(model);
  request.set_id("cpp");
  auto* input = request.add_inputs();
  input->set_name("x");
  input->set_datatype("FP32");
  input->add_shape(values.size());
  request.add_raw_input_contents(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  return request;
}

std::string Outcome(const grpc::Status& status, const ModelInferRequest& request, const ModelInferResponse& response) {
  if (!status.ok()) return "status " + std::to_string(status.error_code());
  const bool same = response.raw_output_contents_size() == 1 &&
                    response.raw_output_contents(0) == request.raw_input_contents(0) && response.id() == "cpp";
  return same ? "same" : "other";
}

void Report(const std::string& step, const std::string& outcome) { std::cout << step << ": " << outcome << std::endl; }

void Unary(GRPCInferenceService::Stub* stub) {
  for (const auto& [name, algorithm] : kAlgorithms) {
    for (const size_t size : {1, 200000}) {
      grpc::ClientContext context;
      context.set_compression_algorithm(algorithm);
      const auto request = Request("echo", std::vector<float>(size, 1.5f));
      ModelInferResponse response;
      const auto status = stub->ModelInfer(&context, request, &response);
      Report("unary/" + name + "/" + std::to_string(size), Outcome(status, request, response));
    }
  }
}

void Async(GRPCInferenceService::Stub* stub) {
  grpc::CompletionQueue queue;
  grpc::ClientContext contexts[8];
  ModelInferResponse responses[8];
  grpc::Status statuses[8];
  const auto request = Request("echo", {1, 2, 3});
  std::vector<std::unique_ptr<grpc::ClientAsyncResponseReader<ModelInferResponse>>> readers;
  for (long each = 0; each < 8; ++each) {
    readers.push_back(stub->PrepareAsyncModelInfer(&contexts[each], request, &queue));
    readers.back()->StartCall();
    readers.back()->Finish(&responses[each], &statuses[each], reinterpret_cast<void*>(each));
  }
  int same = 0;
  for (int each = 0; each < 8; ++each) {
    void* tag = nullptr;
    bool ok = false;
    if (!queue.Next(&tag, &ok)) break;
    const auto index = reinterpret_cast<long>(tag);
    same += ok && Outcome(statuses[index], request, responses[index]) == "same";
  }
  Report("async", std::to_string(same) + " same");
}

void Stream(GRPCInferenceService::Stub* stub) {
  for (const auto& [name, algorithm] : kAlgorithms) {
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    auto stream = stub->ModelStreamInfer(&context);
    const auto request = Request("echo", std::vector<float>(1000, 2.5f));
    std::thread writer([&] {
      for (int each = 0; each < 20; ++each) stream->Write(request);
      stream->WritesDone();
    });
    int same = 0;
    ModelStreamInferResponse response;
    while (stream->Read(&response)) {
      same += response.error_message().empty() && Outcome({}, request, response.infer_response()) == "same";
    }
    writer.join();
    Report("stream/" + name, std::to_string(same) + " same, status " + std::to_string(stream->Finish().error_code()));
  }
}

void DeadlineAndCancel(GRPCInferenceService::Stub* stub) {
  const auto request = Request("delayed", {1.5f});
  ModelInferResponse response;
  grpc::ClientContext late;
  late.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  Report("deadline", Outcome(stub->ModelInfer(&late, request, &response), request, response));
  grpc::ClientContext cancelled;
  std::thread canceller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    cancelled.TryCancel();
  });
  Report("cancel", Outcome(stub->ModelInfer(&cancelled, request, &response), request, response));
  canceller.join();
  grpc::ClientContext after;
  Report("after", Outcome(stub->ModelInfer(&after, request, &response), request, response));
}

void Keepalive(const std::string& address) {
  // Pings while the stream is silent: the server must acknowledge them and keep the connection.
  auto channel = Connect(address, 1000, true);
  auto stub = GRPCInferenceService::NewStub(channel);
  grpc::ClientContext context;
  auto stream = stub->ModelStreamInfer(&context);
  const auto request = Request("echo", {1, 2});
  std::string outcome;
  // As in Triton's client a thread reads all the time: gRPC sends pings only while one waits.
  std::thread reader([&] {
    ModelStreamInferResponse response;
    for (int each = 0; each < 2; ++each) {
      outcome += (stream->Read(&response) ? Outcome({}, request, response.infer_response()) : "ended") + " ";
    }
  });
  stream->Write(request);
  std::this_thread::sleep_for(std::chrono::milliseconds(4500));
  stream->Write(request);
  reader.join();
  stream->WritesDone();
  Report("keepalive", outcome + "status " + std::to_string(stream->Finish().error_code()));
}

size_t Append(char* data, size_t size, size_t count, void* text) {
  static_cast<std::string*>(text)->append(data, size * count);
  return size * count;
}

std::string Compressed(const std::string& text, int window_bits) {
  z_stream stream{};
  deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY);
  std::string compressed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = text.size();
  stream.next_out = reinterpret_cast<Bytef*>(compressed.data());
  stream.avail_out = compressed.size();
  deflate(&stream, Z_FINISH);
  compressed.resize(stream.total_out);
  deflateEnd(&stream);
  return compressed;
}

// One request with a binary tensor; one curl handle keeps its connection, as in Triton's client.
void Http(CURL* curl, const std::string& url, const std::string& encoding, size_t count) {
  const std::vector<float> values(count, 3.5f);
  const std::string tensor(reinterpret_cast<const char*>(values.data()), count * sizeof(float));
  const std::string json = "{\"id\":\"cpp\",\"inputs\":[{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[" +
                           std::to_string(count) + "],\"parameters\":{\"binary_data_size\":" +
                           std::to_string(tensor.size()) +
                           "}}],\"outputs\":[{\"name\":\"y\",\"parameters\":{\"binary_data\":true}}]}";
  std::string body = json + tensor, answer, headers;
  curl_slist* list = curl_slist_append(nullptr, "Expect:");
  list = curl_slist_append(list, ("Inference-Header-Content-Length: " + std::to_string(json.size())).c_str());
  list = curl_slist_append(list, "Content-Type: application/octet-stream");
  if (encoding != "none") {
    body = Compressed(body, encoding == "gzip" ? 31 : 15);
    list = curl_slist_append(list, ("Content-Encoding: " + encoding).c_str());
  }
  curl_easy_reset(curl);
  curl_easy_setopt(curl, CURLOPT_URL, (url + "/v2/models/echo/infer").c_str());
  curl_easy_setopt(curl, CURLOPT_POST, 1L);
  curl_easy_setopt(curl, CURLOPT_TCP_NODELAY, 1L);
  curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
  curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body.data());
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, list);
  if (encoding != "none") curl_easy_setopt(curl, CURLOPT_ACCEPT_ENCODING, encoding.c_str());
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, Append);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &answer);
  const auto code = curl_easy_perform(curl);
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  curl_slist_free_all(list);
  const bool same = answer.size() > tensor.size() && answer.substr(answer.size() - tensor.size()) == tensor;
  Report("http/" + encoding + "/" + std::to_string(count),
         code == CURLE_OK && same ? "same, status " + std::to_string(status)
                                  : std::string(curl_easy_strerror(code)) + ", status " + std::to_string(status));
}

}  // namespace

int main(int, char** argv) {
  const std::string address = argv[1], url = argv[2];
  auto stub = GRPCInferenceService::NewStub(Connect(address, INT_MAX, false));
  Unary(stub.get());
  Async(stub.get());
  Stream(stub.get());
  DeadlineAndCancel(stub.get());
  Keepalive(address);
  curl_global_init(CURL_GLOBAL_ALL);
  CURL* curl = curl_easy_init();
  for (const auto* encoding : {"none", "gzip", "deflate"}) {
    for (const size_t count : {1, 500000}) Http(curl, url, encoding, count);
  }
  curl_easy_cleanup(curl);
  return 0;
}
