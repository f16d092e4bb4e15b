// An independent verifier of exported chains (format lineage-audit-v1), for Node 18 or newer.
//
//   node verify.mjs FILE|FOLDER [--public-key HEX] [--checkpoint SEQ:HASH]
//
// FILE is a chain's export lines, or an export that says at its end what it holds; FOLDER is an unpacked bundle.
//
// It shares no code with the service and has no canonicaliser: the signed bytes are the line without its
// fixed-length tail `,"hash":"…","signature":"…"}`. So it cannot see a payload that is signed with the right
// key but not in canonical form; everything else it judges as `trails verify` does.
//
// Exit codes: 0 verified, 1 tampered, 2 usage, 3 incomplete, 4 nothing to verify, 5 could not check,
// 6 sound but the signer's key is only self-declared.

import { createHash, createPublicKey, verify } from "node:crypto";
import { readFileSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";

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

// A statement at the end of an export or in a bundle's manifest: what it says, and who signs it (or null).
function readStatement(line, about) {
  const tail = TAIL.exec(line);
  const text = tail === null ? line : line.slice(0, -TAIL_LENGTH) + "}";
  let statement;
  try {
    statement = JSON.parse(text);
  } catch {
    throw new Tampered("a statement that is not JSON");
  }
  demand(statement.form === "lineage-export-v1" && statement[about] !== undefined, "not a statement");
  demand((statement.public_key === null) === (tail === null), "a statement without its signature");
  if (tail !== null) {
    const sum = createHash("sha256").update("lineage-export-v1\n").update(text, "utf8").digest("hex");
    demand(sum === tail[1], "the hash of the statement is not that of its text");
    checkSignature(loadKey(statement.public_key), tail[1], tail[2]);
  }
  return { says: statement[about], signer: statement.public_key };
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
  return judge(state, pinned);
}

function judge(state, pinned) {
  if (pinned !== null && state.first !== pinned) return [7, `begins with key ${state.first}, not the pinned one`];
  if (pinned === null) return [6, "consistent in itself; the signer's key is self-declared"];
  return [0, `verified up to seq ${state.seq}`];
}

// The gravest of several outcomes, by exit code.
function worst(outcomes) {
  const order = [0, 6, 4, 5, 7, 3, 1];
  return outcomes.reduce((a, b) => (order.indexOf(b[0]) > order.indexOf(a[0]) ? b : a), [0, "verified"]);
}

function signerOutcome(signer, firsts, pinned) {
  const known = signer === null || signer === pinned || firsts.includes(signer);
  return known ? [0, "verified"] : [7, `the statement is signed by ${signer}`];
}

// An export with a line before and a statement behind its chains, each of which ends in a line of its own.
function verifySealed(bytes, pinned) {
  const digest = createHash("sha256");
  const outcomes = [];
  const firsts = [];
  let from = bytes.indexOf(10) + 1;
  if (from === 0) return [3, "incomplete"];
  const complete = JSON.parse(decode(bytes.subarray(0, from))).export.complete_chains;
  digest.update(bytes.subarray(0, from));
  let state = null;
  let rows = 0;
  let inChain = 0;
  while (from < bytes.length) {
    const feed = bytes.indexOf(10, from);
    const to = feed === -1 ? bytes.length : feed + 1;
    const line = bytes.subarray(from, feed === -1 ? to : feed);
    const text = line.toString("latin1");
    if (text.startsWith('{"form":"lineage-export-v1",')) {
      if (feed === -1 && !text.endsWith("}")) return [3, "incomplete"];
      const { says, signer } = readStatement(decode(line), "trailer");
      demand(to === bytes.length, "something stands behind the statement");
      demand(says.sha256 === digest.digest("hex") && says.rows === rows, "not the bytes that were exported");
      if (!complete) return [3, "a filtered export: no complete chain"];
      if (rows === 0) return [4, "nothing to verify"];
      return worst([...outcomes, signerOutcome(signer, firsts, pinned)]);
    }
    if (feed === -1) return [3, "incomplete"];
    digest.update(bytes.subarray(from, to));
    if (text.startsWith('{"chain":')) {
      const said = JSON.parse(decode(line)).chain;
      demand(said.records === inChain, "a chain with another count");
      if (complete && state !== null) {
        demand(state.seq === said.last_seq && state.hash === said.head_hash, "a chain with another head");
        outcomes.push(judge(state, pinned));
        firsts.push(state.first, state.key.hex);
      }
      state = null;
      inChain = 0;
    } else {
      rows += 1;
      inChain += 1;
      if (complete) state = step(state, decode(line));
    }
    from = to;
  }
  return [3, "incomplete: the statement at the end is not there"];
}

// An unpacked bundle: every member against the manifest, every chain against what the manifest says of it.
function verifyBundle(folder, pinned) {
  const there = readdirSync(folder, { recursive: true })
    .map((name) => name.split("\\").join("/"))
    .filter((name) => statSync(join(folder, name)).isFile());
  if (!there.includes("manifest.json")) return [3, "incomplete: the manifest is not there"];
  const manifest = decode(readFileSync(join(folder, "manifest.json"))).replace(/\n$/, "");
  const { says, signer } = readStatement(manifest, "manifest");
  const told = says.members.map((member) => member.name);
  for (const name of there) demand(name === "manifest.json" || told.includes(name), `${name} was added`);
  const outcomes = [];
  const firsts = [];
  for (const member of says.members) {
    if (!there.includes(member.name)) {
      outcomes.push([3, `incomplete: ${member.name} is not there`]);
      continue;
    }
    const bytes = readFileSync(join(folder, member.name));
    const sum = createHash("sha256").update(bytes).digest("hex");
    demand(sum === member.sha256 && bytes.length === member.bytes, `${member.name} was changed`);
    if (member.log_uuid === undefined || member.records === 0) continue;
    const state = stateOf(bytes);
    demand(state.seq === member.last_seq && state.hash === member.head_hash, "a chain with another head");
    outcomes.push(judge(state, pinned));
    firsts.push(state.first, state.key.hex);
  }
  if (outcomes.length === 0) return [4, "nothing to verify"];
  return worst([...outcomes, signerOutcome(signer, firsts, pinned)]);
}

function stateOf(bytes) {
  let state = null;
  for (let from = 0; from < bytes.length; ) {
    const feed = bytes.indexOf(10, from);
    demand(feed !== -1, "a line without an end");
    state = step(state, decode(bytes.subarray(from, feed)));
    from = feed + 1;
  }
  return state;
}

function usage() {
  console.error("usage: node verify.mjs FILE|FOLDER [--public-key HEX] [--checkpoint SEQ:HASH]");
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
  let isFolder = false;
  try {
    isFolder = statSync(file).isDirectory();
    bytes = isFolder ? null : readFileSync(file);
  } catch (error) {
    console.error(`could not read ${file}: ${error.code}`);
    return 5;
  }
  if (!isFolder && bytes.subarray(0, 4).toString("latin1") === "PK\x03\x04") {
    console.log("could not check: a ZIP file; unpack it and name the folder");
    return 5;
  }
  try {
    const sealed = !isFolder && bytes.subarray(0, 10).toString("latin1") === '{"export":';
    const [code, words] = isFolder
      ? verifyBundle(file, pinned)
      : sealed
        ? verifySealed(bytes, pinned)
        : verifyFile(bytes, pinned, checkpoint);
    console.log(words);
    return code;
  } catch (error) {
    if (!(error instanceof Tampered)) throw error;
    console.log(`tampered: ${error.message}`);
    return 1;
  }
}

process.exitCode = main();
