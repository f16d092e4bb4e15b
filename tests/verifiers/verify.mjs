// An independent verifier of exported chains (format lineage-audit-v1), for Node 18 or newer.
//
//   node verify.mjs FILE [--public-key HEX] [--checkpoint SEQ:HASH]
//
// It shares no code with the service and has no canonicaliser: the signed bytes are the line without its
// fixed-length tail `,"hash":"…","signature":"…"}`. So it cannot see a payload that is signed with the right
// key but not in canonical form; everything else it judges as `trails verify` does.
//
// Exit codes: 0 verified, 1 tampered, 2 usage, 3 incomplete, 4 nothing to verify, 5 could not check,
// 6 sound but the signer's key is only self-declared.

import { createHash, createPublicKey, verify } from "node:crypto";
import { readFileSync } from "node:fs";

const ZERO_HASH = "0".repeat(64);
const TAIL = /,"hash":"([^"]{64})","signature":"([^"]{128})"\}$/;
const TAIL_LENGTH = 218;
const SKELETON = new RegExp(
  String.raw`^\{"actor":"(?:[^"\\]|\\.)*","kind":"((?:[^"\\]|\\.)*)","payload":\{.*\},` +
    String.raw`"prev_hash":"([0-9a-f]{64})","seq":(0|[1-9][0-9]*),` +
    String.raw`"timestamp":"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z)"\}$`,
  "s",
);
const GROUP_ORDER = 2n ** 252n + 27742317777372353535851937790883648493n;
const PRIME = 2n ** 255n - 19n;
const ORDER_8_Y = fromLittleEndian("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05");
const SMALL_ORDER_Y = new Set([0n, 1n, PRIME - 1n, ORDER_8_Y, PRIME - ORDER_8_Y]);
const SPKI_PREFIX = "302a300506032b6570032100";

class Tampered extends Error {}

function fromLittleEndian(hex) {
  return BigInt("0x" + Buffer.from(hex, "hex").reverse().toString("hex"));
}

function demand(condition, reason) {
  if (!condition) throw new Tampered(reason);
}

function loadKey(hex) {
  demand(typeof hex === "string" && /^[0-9a-f]{64}$/.test(hex), "a public key is 64 lowercase hex digits");
  const y = fromLittleEndian(hex) & ((1n << 255n) - 1n);
  demand(y < PRIME && !SMALL_ORDER_Y.has(y), "a public key that is not canonical or of small order");
  const der = Buffer.from(SPKI_PREFIX + hex, "hex");
  return { hex, key: createPublicKey({ key: der, format: "der", type: "spki" }) };
}

function checkSignature(key, hash, signature) {
  demand(/^[0-9a-f]{128}$/.test(signature), "a signature is 128 lowercase hex digits");
  demand(fromLittleEndian(signature.slice(64)) < GROUP_ORDER, "a signature that is not canonical");
  const good = verify(null, Buffer.from(hash, "hex"), key.key, Buffer.from(signature, "hex"));
  demand(good, "not signed by the key in force");
}

function decode(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw new Tampered("not UTF-8");
  }
}

// One record on top of `state`: {seq, hash, timestamp, key, first}, or null at the beginning.
function step(state, line) {
  const tail = TAIL.exec(line);
  demand(tail !== null && tail[0].length === TAIL_LENGTH, "no hash and signature at the end of the line");
  const text = line.slice(0, -TAIL_LENGTH) + "}";
  const [, hash, signature] = tail;
  const skeleton = SKELETON.exec(text);
  demand(skeleton !== null, "not a record");
  const [, , prevHash, seqText, timestamp] = skeleton;
  let record;
  try {
    record = JSON.parse(text);
  } catch {
    throw new Tampered("not JSON");
  }
  const seq = Number(seqText);
  demand(seq === (state === null ? 0 : state.seq + 1), `found seq ${seq}`);
  demand((seq === 0) === (record.kind === "genesis"), "genesis out of place");
  demand(state === null || timestamp >= state.timestamp, "the time goes back");
  demand(prevHash === (state === null ? ZERO_HASH : state.hash), "prev_hash is not the predecessor's hash");
  const sum = createHash("sha256").update("lineage-audit-v1\n").update(text, "utf8").digest("hex");
  demand(sum === hash, "the hash is not that of the text");
  const key = state === null ? loadKey(record.payload.public_key) : state.key;
  checkSignature(key, hash, signature);
  const next = record.kind === "key_rotated" ? loadKey(record.payload.public_key) : key;
  return { seq, hash, timestamp, key: next, first: state === null ? key.hex : state.first };
}

function verifyFile(bytes, pinned, checkpoint) {
  let state = null;
  let cut = false;
  let confirmed = checkpoint === null;
  for (let from = 0; from < bytes.length; ) {
    const feed = bytes.indexOf(10, from);
    const last = feed === -1;
    const line = bytes.subarray(from, last ? bytes.length : feed);
    if (last && !TAIL.test(line.toString("latin1"))) {
      cut = true;
      break;
    }
    state = step(state, decode(line));
    if (checkpoint !== null && state.seq === checkpoint.seq) {
      demand(state.hash === checkpoint.hash, "the checkpoint has another hash");
      confirmed = true;
    }
    from = last ? bytes.length : feed + 1;
  }
  if (cut || !confirmed) return [3, "incomplete"];
  if (state === null) return [4, "nothing to verify"];
  if (pinned !== null && state.first !== pinned) return [7, `begins with key ${state.first}, not the pinned one`];
  if (pinned === null) return [6, "consistent in itself; the signer's key is self-declared"];
  return [0, `verified up to seq ${state.seq}`];
}

function usage() {
  console.error("usage: node verify.mjs FILE [--public-key HEX] [--checkpoint SEQ:HASH]");
  process.exit(2);
}

function options(args) {
  const found = { file: null, pinned: null, checkpoint: null };
  for (let i = 0; i < args.length; i += 1) {
    if (args[i] === "--public-key") {
      found.pinned = args[(i += 1)] ?? usage();
      if (!/^[0-9a-f]{64}$/.test(found.pinned)) usage();
    } else if (args[i] === "--checkpoint") {
      const match = /^([0-9]+):([0-9a-f]{64})$/.exec(args[(i += 1)] ?? "") ?? usage();
      found.checkpoint = { seq: Number(match[1]), hash: match[2] };
    } else if (found.file === null && !args[i].startsWith("--")) {
      found.file = args[i];
    } else {
      usage();
    }
  }
  if (found.file === null) usage();
  return found;
}

function main() {
  const { file, pinned, checkpoint } = options(process.argv.slice(2));
  let bytes;
  try {
    bytes = readFileSync(file);
  } catch (error) {
    console.error(`could not read ${file}: ${error.code}`);
    return 5;
  }
  try {
    const [code, words] = verifyFile(bytes, pinned, checkpoint);
    console.log(words);
    return code;
  } catch (error) {
    if (!(error instanceof Tampered)) throw error;
    console.log(`tampered: ${error.message}`);
    return 1;
  }
}

process.exitCode = main();
