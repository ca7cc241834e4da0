// Records on stdin, events on stdout; see scripts/cloudevents.
const { CloudEvent, Kafka } = require("cloudevents");

const lines = require("readline").createInterface({ input: process.stdin });
lines.on("line", (line) => {
  const { key, headers, value } = JSON.parse(line);
  const bytes = Buffer.from(value, "base64");
  const isText = !(headers["content-type"] || "").startsWith("application/octet-stream");
  const event = Kafka.toEvent({ key, headers, value: isText ? bytes.toString("utf8") : bytes });
  // The SDK puts the record's key in; it is no attribute of the event.
  const { partitionkey, ...attributes } = event.toJSON();
  // Strict: against the JSON schema, and the names of extensions.
  console.log(JSON.stringify(new CloudEvent(attributes, true)));
});
