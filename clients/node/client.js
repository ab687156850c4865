// A client of the gateway: text as it comes, a refusal with its details, a deadline.
//
// `npm ci && node client.js [HOST:PORT [PROMPT]]`. Nothing is generated: the contract is read from
// the folder `protos/` of this repository when the client starts. The variable PACELINE_CA names a PEM
// file of authorities and turns TLS on, PACELINE_TOKEN holds an access token.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const protoLoader = require("@grpc/proto-loader");

const [address = "127.0.0.1:50051", text = "Name three rivers in Europe."] = process.argv.slice(2);

const definition = protoLoader.loadSync(
  ["paceline/v1/gateway.proto", path.join(__dirname, "../error_details.proto")],
  {
    includeDirs: [path.join(__dirname, "../../protos")],
    keepCase: true, longs: String, enums: String, oneofs: true, objects: true,
    // Empty text, counts of 0 and empty lists are not sent; without these they would be undefined.
    defaults: true, arrays: true,
  },
);
const { paceline } = grpc.loadPackageDefinition(definition);
const Status = definition["google.rpc.Status"];
const ErrorInfo = definition["google.rpc.ErrorInfo"];

const prompt = { chat: { messages: [{ role: "user", content: text }] } };
const { PACELINE_CA: ca, PACELINE_TOKEN: token } = process.env;
const metadata = new grpc.Metadata();
if (token) metadata.set("authorization", `Bearer ${token}`);
const inMs = (ms) => ({ deadline: Date.now() + ms });

// The ErrorInfo of a failed call, undefined where there is none: a deadline, a lost connection.
function errorInfo(error) {
  const [bytes] = error.metadata.get("grpc-status-details-bin");
  const details = bytes ? Status.deserialize(bytes).details : [];
  const detail = details.find(({ type_url }) => type_url.endsWith("google.rpc.ErrorInfo"));
  return detail && ErrorInfo.deserialize(detail.value);
}

// Streams one generation, piece by piece, then its figures.
async function printText(gateway) {
  const request = { prompt, sampling: { temperature: 0 }, max_tokens: 32 };
  for await (const event of gateway.Generate(request, metadata, inMs(60_000))) {
    if (event.event === "tokens") process.stdout.write(event.tokens.text);
    if (event.event === "finished") {
      const { usage, stats } = event.finished;
      console.log(`\n${usage.completion_token_count} tokens in ${stats.round_count} rounds`);
    }
  }
}

// Asks for something that cannot be: the status says what and why.
function printRefusal(gateway) {
  const generation = { prompt, sampling: { temperature: -1 } };
  return new Promise((done) => {
    gateway.Complete({ generation }, metadata, inMs(60_000), (error) => {
      console.log(`${grpc.status[error.code]}: ${error.details}`);
      const info = errorInfo(error);
      if (info) console.log(info.domain, info.reason, JSON.stringify(info.metadata));
      done();
    });
  });
}

// Lets a deadline pass: both tiers stop working on it, and what came before it is valid.
async function printDeadline(gateway) {
  const request = { prompt, sampling: { temperature: 0, ignore_eos: true } };
  let numTokens = 0;
  try {
    for await (const event of gateway.Generate(request, metadata, inMs(500))) {
      numTokens += event.tokens?.token_ids.length ?? 0;
    }
  } catch (error) {
    console.log(`${grpc.status[error.code]} after ${numTokens} tokens`);
  }
}

async function main() {
  const { createInsecure, createSsl } = grpc.credentials;
  const credentials = ca ? createSsl(fs.readFileSync(ca)) : createInsecure();
  const gateway = new paceline.v1.GatewayService(address, credentials);
  await printText(gateway);
  await printRefusal(gateway);
  await printDeadline(gateway);
  gateway.close();
}

main();
