// Translates texts with one call, and then as a stream; one answer a line.
//
//   node client.mjs HOST:PORT TEXT [TEXT ...]
//
// HMC_TOKEN: the server's token. HMC_CA: PEM file of the authorities that signed its certificate; without it, no TLS.

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { credentials, loadPackageDefinition, Metadata, status } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const DEADLINE_MS = 30_000;
const PROTOS = fileURLToPath(new URL("../../../protos", import.meta.url));
// grpc-js waits as long as the server's grpc-retry-pushback-ms says, and sends nothing again if it says -1.
const CONFIG = {
  methodConfig: [
    {
      name: [{ service: "hmc.v1.TranslationService" }],
      retryPolicy: {
        maxAttempts: 5,
        initialBackoff: "0.1s",
        maxBackoff: "5s",
        backoffMultiplier: 2,
        retryableStatusCodes: ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
      },
    },
  ],
};

const [address, ...texts] = process.argv.slice(2);
if (texts.length === 0) {
  console.error("usage: node client.mjs HOST:PORT TEXT [TEXT ...]");
  process.exit(2);
}

const { hmc } = loadPackageDefinition(loadSync("hmc/v1/translation.proto", { includeDirs: [PROTOS], keepCase: true }));
const { HMC_CA, HMC_TOKEN } = process.env;
const client = new hmc.v1.TranslationService(
  address,
  HMC_CA ? credentials.createSsl(readFileSync(HMC_CA)) : credentials.createInsecure(),
  { "grpc.service_config": JSON.stringify(CONFIG) },
);

function metadata() {
  const made = new Metadata();
  if (HMC_TOKEN) made.set("authorization", `Bearer ${HMC_TOKEN}`);
  return made;
}

const options = () => ({ deadline: Date.now() + DEADLINE_MS });

function translate(request) {
  return new Promise((resolve, reject) => {
    client.Translate(request, metadata(), options(), (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

try {
  const answer = await translate({ texts: texts.slice(0, 1) });
  console.log(`call\t${answer.translations[0].text}`);

  const stream = client.TranslateStream(metadata(), options());
  texts.forEach((text, index) => stream.write({ id: String(index), text }));
  stream.end();
  const translations = [];
  for await (const { id, translation, error } of stream) {
    if (error) throw Object.assign(new Error(error.message), error);
    translations[Number(id)] = translation.text; // answers come as they are ready
  }
  translations.forEach((text) => console.log(`stream\t${text}`));
} catch (error) {
  console.error(`${status[error.code] ?? error.name}: ${error.details ?? error.message}`);
  process.exitCode = 1;
} finally {
  client.close();
}
