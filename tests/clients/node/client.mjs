// Lists the levels of an HMC server and translates a text at each level named on the command line. Everything it knows
// of the service it asks the server, through gRPC server reflection: there is no .proto file here.
//
//   node client.mjs HOST:PORT TEXT LEVEL [LEVEL ...]
//
// Prints one JSON object. Exit code 1 and {"error": {"code", "message"}} if a call fails, 2 for a wrong command line.

import { credentials, status } from "@grpc/grpc-js";
import { GrpcReflection } from "grpc-js-reflection-client";

const SERVICE = "hmc.v1.TranslationService";
const DEADLINE_MS = 30_000;

const [address, text, ...names] = process.argv.slice(2);
if (names.length === 0) {
  console.error("usage: node client.mjs HOST:PORT TEXT LEVEL [LEVEL ...]");
  process.exit(2);
}

function call(client, method, request) {
  return new Promise((resolve, reject) => {
    client[method](request, { deadline: Date.now() + DEADLINE_MS }, (error, response) =>
      error ? reject(error) : resolve(response),
    );
  });
}

try {
  const open = credentials.createInsecure();
  const reflection = new GrpcReflection(address, open, {}, "v1");
  const services = await reflection.listServices();
  const descriptor = await reflection.getDescriptorBySymbol(SERVICE);
  const { hmc } = descriptor.getPackageObject({ keepCase: true, longs: Number, enums: String, defaults: true });
  const client = new hmc.v1.TranslationService(address, open);

  const listed = await call(client, "ListLevels", {});
  const translations = [];
  for (const name of names) {
    const answer = await call(client, "Translate", { texts: [text], level: { name } });
    translations.push({ level: answer.level, text: answer.translations[0].text, score: answer.translations[0].score });
  }
  const levels = listed.levels.map(({ name, heads, precision, bytes, loaded }) => ({ name, heads, precision, bytes, loaded }));
  console.log(JSON.stringify({ services, bundle_version: listed.bundle_version, levels, translations }, null, 1));
  client.close();
} catch (error) {
  const code = status[error.code] ?? error.name;
  console.log(JSON.stringify({ error: { code, message: error.details ?? String(error.message) } }));
  process.exitCode = 1;
}
