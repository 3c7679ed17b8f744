// MQTT.js, driven by the commands of `tests.clients.peers`.
"use strict";

const mqtt = require("mqtt");

const NAMES = {
  user: "userProperties",
  content_type: "contentType",
  response_topic: "responseTopic",
  correlation: "correlationData",
  message_expiry: "messageExpiryInterval",
  alias: "topicAlias",
};

const say = (event, more) => console.log(JSON.stringify({ event, ...more }));

let client;

// Pairs as an object whose values are lists, as MQTT.js has them, and back.
function grouped(pairs) {
  const found = {};
  for (const [name, value] of pairs) (found[name] ??= []).push(value);
  return found;
}

function pairs(found) {
  return Object.entries(found ?? {}).flatMap(([name, values]) =>
    [values].flat().map((value) => [name, value]));
}

const commands = {
  connect(command) {
    const five = command.version === 5;
    const properties = {
      sessionExpiryInterval: command.expiry ?? 0,
      topicAliasMaximum: command.aliases ?? 0,
    };
    if (command.maximum_packet) properties.maximumPacketSize = command.maximum_packet;
    client = mqtt.connect({
      host: "127.0.0.1",
      port: command.port,
      protocol: "mqtt",
      protocolVersion: command.version,
      clientId: command.id,
      clean: command.clean,
      keepalive: command.keep_alive,
      username: command.user,
      password: command.password,
      will: command.will && { ...command.will, payload: Buffer.from(command.will.payload) },
      reconnectPeriod: 0,
      ...(five && { properties }),
    });
    // A message is acknowledged when this calls back; until then no more are taken.
    client.handleMessage = (packet, callback) => command.manual || callback();
    client.on("connect", (packet) => say("connack", {
      code: packet.reasonCode ?? packet.returnCode ?? 0,
      present: packet.sessionPresent,
      assigned: packet.properties?.assignedClientIdentifier ?? null,
      keep_alive: packet.properties?.serverKeepAlive ?? null,
    }));
    client.on("error", (error) => say("connack", { code: error.code, present: false }));
    client.on("close", () => say("closed", {}));
    // What publish() calls back with has no reason.
    client.on("packetreceive", (packet) => {
      const refused = packet.cmd === "pubrec" && packet.reasonCode >= 0x80;
      if (refused || packet.cmd === "puback" || packet.cmd === "pubcomp") {
        say("puback", { code: packet.reasonCode ?? 0 });
      }
    });
    client.on("message", (topic, payload, packet) => say("message", {
      topic,
      payload: payload.toString(),
      qos: packet.qos,
      retain: packet.retain,
      dup: packet.dup,
      user: pairs(packet.properties?.userProperties),
      content_type: packet.properties?.contentType ?? null,
      response_topic: packet.properties?.responseTopic ?? null,
      correlation: packet.properties?.correlationData?.toString() ?? null,
      message_expiry: packet.properties?.messageExpiryInterval ?? null,
      identifiers: [packet.properties?.subscriptionIdentifier ?? []].flat(),
    }));
  },

  subscribe(command) {
    const options = { qos: command.qos };
    if (command.identifier) options.properties = { subscriptionIdentifier: command.identifier };
    client.subscribe(command.filter, options, (error, granted, packet) =>
      say("suback", { codes: packet?.granted ?? [error.code] }));
  },

  publish(command) {
    const properties = {};
    for (const [name, value] of Object.entries(command.properties ?? {})) {
      if (name === "user") properties.userProperties = grouped(value);
      else if (name === "correlation") properties.correlationData = Buffer.from(value);
      else properties[NAMES[name]] = value;
    }
    const options = { qos: command.qos, retain: command.retain, properties };
    client.publish(command.topic, command.payload, options, () => {
      if (command.qos === 0) say("puback", { code: 0 });
    });
  },

  disconnect() {
    client.end();
  },
};

require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const command = JSON.parse(line);
  commands[command.do](command);
}).on("close", () => process.exit());
