#!/usr/bin/env node
// A second verifier of tacita's ledgers and signatures, written from docs/format.md alone. It imports nothing but Node's own modules.
//   node verify.mjs RUN [PUBLIC_KEY]     a finished run; with a key (PEM or OpenSSH), the run must be signed with it
//   node verify.mjs LEDGER.jsonl         a ledger alone, finished or not
// Exit code 0: nothing is wrong. 1: something is, or the key's signature is missing. 2: the command is wrong.
import { createHash, createPublicKey, verify as verifySignature } from "node:crypto";
import { existsSync, readdirSync, readFileSync, realpathSync, statSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const TO_SIGN = ["responsible", "contact", "purpose"];
const RELATIONS = ["add_or_remove_one", "replace_one", "zero_out_one"];
const TERMS = ["neighboring_relation", "privacy_unit", "max_epsilon", "max_delta", "filter_order", "filter"];
const ZEROS = "0".repeat(64);
const HASH = /^[0-9a-f]{64}$/;
class Fault extends Error {}
const need = (holds, words) => { if (!holds) throw new Fault(words); };
const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");

// --- canonical JSON ---------------------------------------------------------------------------------------------------------
// A number keeps its digits, because hashes depend on them.
class Digits { constructor(text) { this.text = text; } }
const isInteger = (value) => value instanceof Digits && /^-?\d+$/.test(value.text);
const isText = (value) => typeof value === "string";
const isObject = (value) => value instanceof Map;
const integer = (value, least, words) => {
  need(isInteger(value) && Number.isSafeInteger(Number(value.text)) && Number(value.text) >= least, words);
  return Number(value.text);
};

// Parse JSON: objects become Maps in the order of the text, numbers Digits. A name that stands twice is a fault.
function parse(text) {
  let at = 0;
  const blank = () => void match(/[ \t\n\r]*/y);
  const match = (pattern) => {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found) at += found[0].length;
    return found?.[0];
  };
  const sequence = (close, read) => {
    at++;
    blank();
    if (text[at] === close) return void at++;
    for (;;) {
      read();
      blank();
      need(text[at] === "," || text[at] === close, "not JSON");
      if (text[at++] === close) return;
      blank();
    }
  };
  const string = () => JSON.parse(match(/"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y) ?? need(false, "not JSON"));
  const value = () => {
    blank();
    if (text[at] === "{") {
      const found = new Map();
      sequence("}", () => {
        const name = string();
        blank();
        need(text[at++] === ":" && !found.has(name), "not JSON, or a name stands twice");
        found.set(name, value());
      });
      return found;
    }
    if (text[at] === "[") {
      const found = [];
      sequence("]", () => found.push(value()));
      return found;
    }
    if (text[at] === '"') return string();
    const word = match(/true|false|null/y);
    if (word) return { true: true, false: false, null: null }[word];
    const digits = match(/-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y);
    need(digits !== undefined, "not JSON");
    return new Digits(canonicalNumber(digits));
  };
  const found = value();
  blank();
  need(at === text.length, "not JSON");
  return found;
}

function canonicalNumber(text) {
  if (/^-?\d+$/.test(text)) return text === "-0" ? "0" : text;
  const number = Number(text);
  need(Number.isFinite(number), "a number is not finite");
  const sign = number < 0 || Object.is(number, -0) ? "-" : "";
  const [, first, rest = "", power] = /^(\d)(?:\.(\d+))?e([+-]\d+)$/.exec(Math.abs(number).toExponential());
  const digits = first + rest;
  const exponent = Number(power);
  const shown = String(Math.abs(exponent)).padStart(2, "0");
  if (exponent < -4 || exponent >= 16) return `${sign}${first}${rest && `.${rest}`}e${exponent < 0 ? "-" : "+"}${shown}`;
  if (exponent < 0) return `${sign}0.${"0".repeat(-exponent - 1)}${digits}`;
  const whole = digits.slice(0, exponent + 1).padEnd(exponent + 1, "0");
  return `${sign}${whole}.${digits.slice(exponent + 1) || "0"}`;
}

const SHORT = { '"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t" };
const quoted = (text) =>
  `"${text.replace(/["\\]|[^ -~]/g, (one) => SHORT[one] ?? `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`)}"`;

function byCodePoint(one, other) {
  const [left, right] = [[...one], [...other]];
  for (let i = 0; i < Math.min(left.length, right.length); i++) {
    if (left[i] !== right[i]) return left[i].codePointAt(0) - right[i].codePointAt(0);
  }
  return left.length - right.length;
}

function canonical(value) {
  if (value instanceof Digits) return value.text;
  if (isText(value)) return quoted(value);
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (!isObject(value)) return String(value);
  const names = [...value.keys()].sort(byCodePoint);
  return `{${names.map((name) => `${quoted(name)}:${canonical(value.get(name))}`).join(",")}}`;
}

// The form of statement.json: one entry a line, names in the order of the file.
function indented(value, margin = "\n") {
  const inner = `${margin}  `;
  const list = (open, entries, close) =>
    entries.length ? `${open}${entries.map((one) => inner + one).join(",")}${margin}${close}` : open + close;
  if (Array.isArray(value)) return list("[", value.map((one) => indented(one, inner)), "]");
  if (!isObject(value)) return canonical(value);
  return list("{", [...value].map(([name, one]) => `${quoted(name)}: ${indented(one, inner)}`), "}");
}

const same = (one, other) => canonical(one ?? null) === canonical(other ?? null);

// An object in canonical form, or undefined. Every character of it is one byte.
function canonicalObject(bytes) {
  try {
    const found = parse(bytes.toString("latin1"));
    if (isObject(found) && canonical(found) === bytes.toString("latin1")) return found;
  } catch {}
}

const exactly = (fields, names, where) =>
  need(fields.size === names.length && names.every((name) => fields.has(name)), `${where} has other fields`);

// --- the lines of a ledger ---------------------------------------------------------------------------------------------------
function splitLines(bytes) {
  const parts = bytes.toString("latin1").split("\n").map((one) => Buffer.from(one, "latin1"));
  return [parts.slice(0, -1), parts.at(-1)];
}

function readLines(bytes) {
  const [lines, tail] = splitLines(bytes);
  const entries = lines.map(canonicalObject);
  let torn = tail.length > 0;
  if (entries.length && entries.at(-1) === undefined && !torn) {
    lines.pop();
    entries.pop();
    torn = true;
  }
  need(lines.length > 0, "this is not a ledger");
  let previous = ZEROS;
  entries.forEach((entry, i) => {
    const where = `line ${i + 1}`;
    need(entry !== undefined, `${where} is not canonical JSON`);
    need(isInteger(entry.get("v")) && entry.get("v").text === "1", `${where} is of another version`);
    need(isInteger(entry.get("seq")) && entry.get("seq").text === String(i), `${where} carries another number`);
    need(entry.get("prev") === previous, `${where} does not follow from the line before`);
    previous = sha256(lines[i]);
  });
  const sealed = entries.at(-1).get("kind") === "seal";
  need(!(sealed && torn), "something follows the seal");
  return { lines, entries, sealed, head: previous };
}

function checkAnchor(path, ledger) {
  const { lines, entries, sealed } = ledger;
  if (!existsSync(path)) return need(!entries.some((entry) => ["reserve", "seal"].includes(entry.get("kind"))), `${basename(path)} is missing`);
  const anchor = parse(readFileSync(path, "utf8"));
  need(isObject(anchor), "the anchor is no object");
  const count = integer(anchor.get("count"), 0, "the anchor has no count");
  need(lines.length >= count, `the ledger has ${lines.length} lines, its anchor counts ${count}`);
  const head = count ? sha256(lines[count - 1]) : ZEROS;
  need(head === anchor.get("head"), `line ${count} is not the one of the anchor`);
  need(!sealed || count >= lines.length - 1, "an older anchor was put back");
}

// --- the records --------------------------------------------------------------------------------------------------------------
const FIELDS = {
  register: [
    ...["ledger", "neighboring_relation", "privacy_unit", "max_epsilon", "max_delta", "filter_order", "filter", "event"],
    ...["planned_queries", "purpose", "part", "settings_sha256", "secure_randomness", "share"],
  ],
  ...{ open: [], withdraw: [], reserve: ["first", "last"], give_back: ["first", "last"] },
  query: ["number", "fingerprint"],
  close: ["queries_made"],
  seal: ["files", "statement"],
};

function checkTerms(fields, where) {
  const get = (name) => fields.get(name);
  const above = (value, least) => value instanceof Digits && Number(value.text) > least;
  need(RELATIONS.includes(get("neighboring_relation")), `${where}: no such relation`);
  const unit = get("privacy_unit");
  need(isText(unit) && unit.trim() && !unit.includes("\n"), `${where}: no privacy unit`);
  const capped = get("max_epsilon") !== null;
  need(capped === (get("max_delta") !== null), `${where}: half a cap`);
  const delta = capped ? Number(get("max_delta").text) : 0.5;
  need(!capped || (above(get("max_epsilon"), 0) && delta > 0 && delta < 1), `${where}: the cap is no cap`);
  need(get("filter_order") === null || (capped && above(get("filter_order"), 1)), `${where}: wrong filter_order`);
  const filter = get("filter");
  need(filter === null || (filter === "gaussian" && capped && get("filter_order") === null), `${where}: wrong filter`);
}

function checkPart(part, relation, where) {
  if (part === null) return;
  need(isObject(part) && isText(part.get("split")) && part.get("split"), `${where}: a part without a split`);
  integer(part.get("index"), 0, `${where}: a part without an index`);
  const names = ["split", "kind", "index"];
  if (part.get("kind") === "coin") {
    names.push(...["fraction", "units"].filter((name) => part.has(name)));
    const fraction = part.get("fraction");
    const share = fraction === undefined ? 1 : fraction instanceof Digits ? Number(fraction.text) : NaN;
    need(share > 0 && share <= 1, `${where}: a fraction outside of (0, 1]`);
    const units = part.has("units");
    need(!units || (part.get("units") === true && relation === "add_or_remove_one"), `${where}: wrong units`);
  } else {
    need(part.get("kind") === "range" && relation !== "add_or_remove_one", `${where}: a part of no known kind`);
    names.push("start", "stop");
    const start = integer(part.get("start"), 0, `${where}: a range without a start`);
    integer(part.get("stop"), start + 1, `${where}: an empty range`);
  }
  exactly(part, names, `${where}: a part`);
}

function shareRecords(one, other) {
  if (one === null || other === null) return true;
  const same = (name) => one.get(name) === other.get(name);
  if (!same("split") || !same("kind")) return true;
  const number = (part, name) => Number(part.get(name).text);
  if (one.get("kind") === "coin") return number(one, "index") === number(other, "index");
  return Math.max(number(one, "start"), number(other, "start")) < Math.min(number(one, "stop"), number(other, "stop"));
}

function checkDrawing(part, sessions, where) {
  if (part === null || part.get("kind") !== "coin") return;
  const drawing = [...sessions.map((one) => one.fields.get("part")), part].filter((one) => one?.get("kind") === "coin" && one.get("split") === part.get("split"));
  const fractions = new Map();
  for (const one of drawing) {
    const index = one.get("index").text;
    const fraction = one.get("fraction")?.text;
    need(one.has("units") === part.has("units"), `${where}: rows and units have coins in one split`);
    need(!fractions.has(index) || fractions.get(index) === fraction, `${where}: one part has two fractions`);
    fractions.set(index, fraction);
  }
  const sum = [...fractions.values()].reduce((total, one) => total + Number(one ?? 0), 0);
  need(sum <= 1 + 1e-9, `${where}: the fractions of a split add up to more than 1`);
}

function register(fields, sessions, where) {
  const get = (name) => fields.get(name);
  checkTerms(fields, where);
  const first = sessions[0]?.fields ?? fields;
  for (const name of [...TERMS, "ledger"]) need(same(get(name), first.get(name)), `${where}: another ${name}`);
  need(isText(get("ledger")) && /^[0-9a-f]{32}$/.test(get("ledger")), `${where}: no name of a ledger`);
  for (const name of ["purpose", "settings_sha256"]) need(isText(get(name)), `${where}: ${name} is no text`);
  need(get("share") === null || isText(get("share")), `${where}: share is no text`);
  need(typeof get("secure_randomness") === "boolean", `${where}: secure_randomness is no boolean`);
  integer(get("planned_queries"), 1, `${where}: planned_queries is no count`);
  const event = get("event");
  need(isObject(event) && isText(event.get("event")), `${where}: no event`);
  need(event.get("relation") === get("neighboring_relation"), `${where}: an event under another relation`);
  const turn = 1 + sessions.filter((one) => one.fields.get("purpose") === get("purpose")).length;
  need(get("session") === `${get("purpose")}-${turn}`, `${where}: a session out of turn`);
  checkPart(get("part"), get("neighboring_relation"), where);
  checkDrawing(get("part"), sessions, where);
  const inTheWay = (one) => one.reserved && shareRecords(one.fields.get("part"), get("part"));
  if (get("share") !== null) {
    const share = sessions.find((one) => one.id === get("share"))?.fields;
    need(share?.get("purpose") === "share" && get("purpose") !== "share", `${where}: paid from no share`);
    need(share.get("part") === null || same(share.get("part"), get("part")), `${where}: another part than its share`);
    const inside = sessions.filter((one) => one.fields.get("share") === get("share"));
    need(!inside.some(inTheWay), `${where}: it comes after queries of its share`);
  } else if (get("filter") === null && get("filter_order") === null) {
    need(!sessions.some(inTheWay), `${where}: it comes after queries on the same records`);
  }
  return { id: get("session"), fields, state: "registered", reserved: 0, made: new Set(), last: -1, closedWith: null };
}

function change(session, kind, fields, where) {
  const wanted = kind === "open" || kind === "withdraw" ? "registered" : "open";
  need(session?.state === wanted, `${where}: no session that is ${wanted}`);
  const number = (name, least) => integer(fields.get(name), least, `${where}: ${name} is out of range`);
  if (wanted === "registered") session.state = kind === "open" ? "open" : "withdrawn";
  if (kind === "reserve") {
    const [first, last] = [number("first", 0), number("last", session.reserved)];
    need(first <= session.reserved && last < session.planned, `${where}: the reservation does not follow`);
    session.reserved = last + 1;
  }
  if (kind === "give_back") {
    const [first, last] = [number("first", session.last + 1), number("last", 0)];
    need(first <= last && last === session.reserved - 1, `${where}: not all of these queries are unused`);
    session.reserved = first;
  }
  if (kind === "query") {
    const query = number("number", 0);
    need(isText(fields.get("fingerprint")), `${where}: no fingerprint`);
    need(query < session.reserved && !session.made.has(query), `${where}: not reserved, or made twice`);
    session.made.add(query);
    session.last = Math.max(session.last, query);
  }
  if (kind === "close") {
    const made = number("queries_made", session.made.size);
    need(made <= session.reserved, `${where}: more queries than were reserved`);
    [session.state, session.closedWith] = ["closed", made];
  }
}

function replay(entries) {
  const sessions = [];
  let seal = null;
  entries.forEach((entry, i) => {
    const where = `line ${i + 1}`;
    const kind = entry.get("kind");
    need(seal === null, `${where} follows the seal`);
    need(Object.hasOwn(FIELDS, kind) && isText(entry.get("session")), `${where} is no record`);
    const fields = new Map(entry);
    if (kind === "register" && !fields.has("filter")) fields.set("filter", null);
    exactly(fields, [...FIELDS[kind], "v", "seq", "prev", "kind", "session"], where);
    if (kind === "register") {
      const session = register(fields, sessions, where);
      session.planned = Number(fields.get("planned_queries").text);
      sessions.push(session);
    } else if (kind === "seal") {
      const files = fields.get("files");
      need(fields.get("session") === "" && isText(fields.get("statement")), `${where} is no seal`);
      need(isObject(files) && [...files.values()].every(isText), `${where}: files is no object of texts`);
      need(sessions.length && !sessions.some((one) => one.state === "open"), `${where}: sealed with open sessions`);
      seal = fields;
    } else {
      change(sessions.find((one) => one.id === fields.get("session")), kind, fields, where);
    }
  });
  return { sessions, seal };
}

// --- a run ---------------------------------------------------------------------------------------------------------------------
function checkStatement(bytes, ledger, sessions, seal) {
  const text = bytes.toString("latin1");
  const stated = parse(text);
  need(isObject(stated) && indented(stated) + "\n" === text, "statement.json is in other bytes than it was written in");
  need(sha256(canonical(stated)) === seal.get("statement"), "statement.json is not the one of the seal");
  const [first, { lines }] = [sessions[0].fields, ledger];
  const repeated = new Map([
    ...TERMS.slice(0, 4).map((name) => [name, first.get(name)]),
    ["ledger_lines", new Digits(String(lines.length - 1))],
    ["ledger_sha256", sha256(lines.at(-2))],
    ["ledger_verified", true],
    ["secure_randomness", sessions.every((one) => one.fields.get("secure_randomness"))],
  ]);
  for (const [name, value] of repeated) need(stated.has(name) && same(stated.get(name), value), `statement.json: ${name} is not the ledger's`);
  const listed = stated.get("sessions");
  need(Array.isArray(listed) && listed.length === sessions.length, "statement.json lists other sessions");
  listed.forEach((one, i) => {
    const { id, state, made, closedWith, fields } = sessions[i];
    const own = new Map([["id", id], ["state", state]]);
    own.set("queries_made", new Digits(String(made.size)));
    own.set("queries_spent", new Digits(String(closedWith ?? 0)));
    for (const name of ["purpose", "planned_queries", "share", "part"]) own.set(name, fields.get(name));
    const follows = isObject(one) && isText(one.get("event")) && [...own].every(([name, value]) => same(one.get(name), value));
    need(follows, `statement.json: ${id} is not the ledger's`);
  });
  const files = stated.get("files");
  for (const [name, hash] of isObject(files) ? files : []) {
    const sealed = seal.get("files").get(name);
    need(sealed === undefined || sealed === hash, `statement.json names another ${name} than the seal`);
  }
  return stated;
}

const isLine = (text) => isText(text) && text.trim() && !/[\u0000-\u001f\u007f]/.test(text);
const isDay = (text) => isText(text) && /^\d{4}-\d{2}-\d{2}$/.test(text);
const areFloats = (list) => Array.isArray(list) && list.length && list.every((one) => one instanceof Digits && !isInteger(one));
const isPair = (before, after) => areFloats(before) && areFloats(after) && before.length === after.length;
const isCell = (cell) => isObject(cell) && cell.size === 3 && isText(cell.get("cell")) && isPair(cell.get("before"), cell.get("after"));

// The edits continue the ledger behind its seal. What is returned has the lines of both, for the signatures.
function checkEdits(folder, ledger) {
  const bytes = readFileSync(join(folder, "edits.jsonl"));
  const whole = readLines(Buffer.concat([readFileSync(join(folder, "parent", "ledger.jsonl")), bytes]));
  const [lines, tail] = splitLines(bytes);
  need(lines.length && !tail.length && whole.lines.length === ledger.lines.length + lines.length, "edits.jsonl has no whole lines");
  for (const edit of whole.entries.slice(ledger.lines.length)) {
    const where = `line ${edit.get("seq").text} of the edits`;
    exactly(edit, ["v", "seq", "prev", "kind", "who", "date", "reason", "shapes", "sha256"], where);
    const [kind, shapes] = [edit.get("kind"), edit.get("shapes")];
    need(kind === "edit" && isLine(edit.get("who")) && isLine(edit.get("reason")) && isDay(edit.get("date")), `${where} is no edit`);
    need(isObject(shapes) && shapes.size, `${where} edits nothing`);
    for (const cells of shapes.values()) need(Array.isArray(cells) && cells.length && cells.every(isCell), `${where} has a wrong cell`);
    need(edit.get("sha256") === sha256(canonical(new Map([...edit].filter(([name]) => name !== "sha256")))), `${where} was changed`);
    console.log(`edited by ${edit.get("who")} on ${edit.get("date")}: ${[...shapes.keys()].join(", ")}`);
  }
  return whole;
}

function checkSignatures(bytes, ledger, stated) {
  const [lines, tail] = splitLines(bytes);
  need(lines.length && !tail.length, "signatures.jsonl has no whole lines");
  const about = isObject(stated.get("about")) ? stated.get("about") : new Map();
  const said = (from, name) => isText(from.get(name)) && from.get(name).trim();
  need(isText(stated.get("verdict")) && stated.get("verdict").startsWith("private"), "signed, but nothing is guaranteed");
  return lines.map((line, i) => {
    const where = `signature ${i + 1}`;
    const fields = canonicalObject(line);
    need(fields, `${where} is not canonical JSON`);
    const names = ["v", "ledger_lines", "ledger_sha256", "public_key", "signer", "date", "signature"];
    const given = fields.get("about") ?? new Map([["", ""]]);
    exactly(fields, [...names, ...["about", "warnings"].filter((name) => fields.has(name))], where);
    need(isObject(given) && given.size, `${where}: about is no object`);
    for (const [name, text] of fields.has("about") ? given : [])
      need(TO_SIGN.includes(name) && isLine(text) && !said(about, name), `${where} gives ${name}, which is not for it to give`);
    for (const name of TO_SIGN) need(said(about, name) || said(given, name), `${where}: ${name} is not given`);
    const warnings = fields.get("warnings") ?? ["none"];
    need(Array.isArray(warnings) && warnings.length && warnings.every(isLine), `${where}: warnings is no list of lines`);
    const [key, signer, date, signature] = names.slice(3).map((name) => fields.get(name));
    need(same(fields.get("v"), new Digits("1")), `${where} is of another version`);
    const place = [fields.get("ledger_lines"), fields.get("ledger_sha256")];
    need(same(place, [new Digits(String(ledger.lines.length)), ledger.head]), `${where} is of another ledger`);
    need(isText(key) && HASH.test(key), `${where} has no key`);
    need(isLine(signer) && isDay(date), `${where} has no signer, or no date`);
    need(isText(signature) && /^[0-9a-f]{128}$/.test(signature), `${where} has no signature`);
    fields.delete("signature");
    const signed = Buffer.from(`tacita signature 1\n${canonical(fields)}`, "ascii");
    const holder = createPublicKey({ key: Buffer.from(`302a300506032b6570032100${key}`, "hex"), format: "der", type: "spki" });
    need(verifySignature(null, signed, holder, Buffer.from(signature, "hex")), `${where} does not hold`);
    const told = fields.has("about") ? [...given].map(([name, text]) => `; ${name} (said by the signer): ${text}`).join("") : "";
    return { key, signer, date, more: told + (fields.has("warnings") ? `; warned that: ${warnings.join("; ")}` : "") };
  });
}

function publicKey(path) {
  const text = readFileSync(path, "utf8");
  need(!text.includes("PRIVATE KEY"), "this is a private key, which nobody but its holder should have: give the public one");
  const [kind, blob] = text.trim().split(/\s+/);
  if (kind === "ssh-ed25519") return Buffer.from(blob, "base64").subarray(-32).toString("hex");
  const { crv, x } = createPublicKey(text).export({ format: "jwk" });
  need(crv === "Ed25519", "the key is no Ed25519 key");
  return Buffer.from(x, "base64url").toString("hex");
}

function verifyLedger(path) {
  const ledger = readLines(readFileSync(path));
  checkAnchor(path.replace(/\.jsonl$/, "") + ".head.json", ledger);
  return { ledger, ...replay(ledger.entries) };
}

function verifyRun(given, key) {
  const edited = existsSync(join(given, "edits.jsonl"));
  const folder = edited ? join(given, "parent") : given;
  const beside = ["ledger.jsonl", "model.safetensors", "statement.txt", "statement.json"].filter((name) => existsSync(join(given, name)));
  need(!edited || !beside.length, `${beside[0]} stands beside edits.jsonl`);
  const { ledger, sessions, seal } = verifyLedger(join(folder, "ledger.jsonl"));
  need(seal !== null, "the ledger has no seal");
  for (const [name, hash] of seal.get("files")) {
    need(/^\w[\w. +-]*(\/\w[\w. +-]*)*$/.test(name), `the seal names a file outside of the folder: ${name}`);
    need(sha256(readFileSync(join(folder, name))) === hash, `${name} is not the file of the seal`);
    for (const one of name.includes("/") ? readdirSync(join(folder, dirname(name))) : [])
      need([...seal.get("files").keys()].some((file) => `${file}/`.startsWith(`${dirname(name)}/${one}/`)), `${one} beside ${name} is not sealed`);
  }
  const [names, ofEdits] = [[...seal.get("files").keys(), "statement.json", "ledger.jsonl", "ledger.head.json"], edited ? ["edits.jsonl"] : []];
  const links = [...names.map((name) => join(edited ? "parent" : "", name)), ...ofEdits].filter((name) => realpathSync(join(given, name)) !== join(realpathSync(given), name));
  if (links.length) console.log(`links, not files: what was checked is what they point to now, and they can be pointed elsewhere later: ${links.join(", ")}`);
  const own = [...names, "signatures.jsonl", ".tacita.lock", ...ofEdits, edited ? "parent" : ""].map((name) => name.split("/")[0]);
  const more = [...readdirSync(folder), ...(edited ? readdirSync(given) : [])].filter((name) => !own.includes(name));
  if (more.length) console.log(`no seal and no signature covers these files, whatever they say: ${more.sort().join(", ")}`);
  for (const one of [folder, given].map((name) => join(name, "private")))
    need(!existsSync(one) || !readdirSync(one).length, "private/ still holds files, the key of the noise maybe");
  const stated = checkStatement(readFileSync(join(folder, "statement.json")), ledger, sessions, seal);
  const word = (name) => (isText(stated.get(name)) ? stated.get(name) : canonical(stated.get(name) ?? null));
  const epsilon = `epsilon ${word(same(stated.get("conditions"), []) ? "epsilon" : "conditional_epsilon")} at delta ${word("delta")}`;
  console.log(`as stated, not computed here: ${word("verdict")}, warnings: ${word("verdict_warnings")}; ${epsilon}, ${word("neighboring_relation")}, ${word("privacy_unit")}; other runs, audits and edits that came later: tacita show`);
  const [path, whole] = [join(given, "signatures.jsonl"), edited ? checkEdits(given, ledger) : ledger];
  const signatures = existsSync(path) ? checkSignatures(readFileSync(path), whole, stated) : [];
  const mine = signatures.filter((one) => one.key === key);
  need(key === undefined || mine.length, "not signed with the given key");
  for (const { signer, date, more } of mine) console.log(`signed with the given key: ${signer}, ${date}${more}`);
  if (key === undefined) console.log(`${signatures.length === 1 ? "1 signature holds" : `${signatures.length} signatures hold`}; no key was given, so that nobody vouches for them`);
}

export function main([path, keyPath, ...more]) {
  if (path === undefined || more.length) return console.error("usage: node verify.mjs RUN [PUBLIC_KEY], or node verify.mjs LEDGER.jsonl"), 2;
  try {
    if (existsSync(path) && statSync(path).isDirectory()) verifyRun(path, keyPath && publicKey(keyPath));
    else verifyLedger(path);
  } catch (error) {
    console.log(`fault: ${error.message}`);
    return 1;
  }
  console.log("nothing is wrong with the chain, the records, and the files of the seal; epsilon was not computed");
  return 0;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) process.exitCode = main(process.argv.slice(2));
