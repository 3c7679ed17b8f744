import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.hivemq.client.mqtt.MqttGlobalPublishFilter;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.datatypes.MqttUtf8String;
import com.hivemq.client.mqtt.mqtt5.Mqtt5AsyncClient;
import com.hivemq.client.mqtt.mqtt5.Mqtt5Client;
import com.hivemq.client.mqtt.mqtt5.exceptions.Mqtt5ConnAckException;
import com.hivemq.client.mqtt.mqtt5.exceptions.Mqtt5PubAckException;
import com.hivemq.client.mqtt.mqtt5.exceptions.Mqtt5PubRecException;
import com.hivemq.client.mqtt.mqtt5.exceptions.Mqtt5SubAckException;
import com.hivemq.client.mqtt.mqtt5.message.connect.Mqtt5Connect;
import com.hivemq.client.mqtt.mqtt5.message.connect.connack.Mqtt5ConnAck;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5Publish;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5PublishResult;
import com.hivemq.client.mqtt.mqtt5.message.subscribe.suback.Mqtt5SubAck;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Optional;

/** HiveMQ's client, driven by the commands of `tests.clients.peers`. */
public class Five {
    private static final Gson JSON = new Gson().newBuilder().serializeNulls().create();
    private static Mqtt5AsyncClient client;
    private static boolean manual;

    private static synchronized void say(String event, JsonObject more) {
        more.addProperty("event", event);
        System.out.println(JSON.toJson(more));
    }

    private static JsonObject code(int code) {
        JsonObject more = new JsonObject();
        more.addProperty("code", code);
        return more;
    }

    private static byte[] bytes(JsonObject from, String name) {
        return from.get(name).getAsString().getBytes(StandardCharsets.UTF_8);
    }

    private static String text(Optional<ByteBuffer> buffer) {
        return buffer.map(each -> StandardCharsets.UTF_8.decode(each).toString()).orElse(null);
    }

    private static void connect(JsonObject command) {
        client = Mqtt5Client.builder()
            .identifier(command.get("id").getAsString())
            .serverHost("127.0.0.1")
            .serverPort(command.get("port").getAsInt())
            .addDisconnectedListener(context -> say("closed", new JsonObject()))
            .buildAsync();
        manual = command.has("manual") && command.get("manual").getAsBoolean();
        client.publishes(MqttGlobalPublishFilter.ALL, Five::received, true);
        var asked = Mqtt5Connect.builder()
            .cleanStart(command.get("clean").getAsBoolean())
            .keepAlive(command.get("keep_alive").getAsInt());
        if (command.has("expiry")) {
            asked = asked.sessionExpiryInterval(command.get("expiry").getAsLong());
        }
        var limits = asked.restrictions();
        if (command.has("maximum_packet")) {
            limits = limits.maximumPacketSize(command.get("maximum_packet").getAsInt());
        }
        if (command.has("aliases")) {
            limits = limits.topicAliasMaximum(command.get("aliases").getAsInt());
        }
        asked = limits.applyRestrictions();
        if (command.has("scram")) {
            asked = asked.enhancedAuth(
                new Proof(command.get("user").getAsString(), command.get("password").getAsString()));
        } else if (command.has("user")) {
            asked = asked.simpleAuth()
                .username(command.get("user").getAsString())
                .password(bytes(command, "password"))
                .applySimpleAuth();
        }
        if (command.has("will")) {
            JsonObject will = command.getAsJsonObject("will");
            asked = asked.willPublish()
                .topic(will.get("topic").getAsString())
                .payload(bytes(will, "payload"))
                .qos(MqttQos.fromCode(will.get("qos").getAsInt()))
                .retain(will.get("retain").getAsBoolean())
                .applyWillPublish();
        }
        client.connect(asked.build()).whenComplete((answer, error) -> {
            if (error instanceof Mqtt5ConnAckException) {
                answer = ((Mqtt5ConnAckException) error).getMqttMessage();
            } else if (error != null) {
                throw new IllegalStateException(error);
            }
            connected(answer);
        });
    }

    private static void connected(Mqtt5ConnAck answer) {
        JsonObject more = code(answer.getReasonCode().getCode());
        more.addProperty("present", answer.isSessionPresent());
        more.addProperty("assigned",
            answer.getAssignedClientIdentifier().map(Object::toString).orElse(null));
        more.addProperty("keep_alive",
            answer.getServerKeepAlive().isPresent() ? answer.getServerKeepAlive().getAsInt() : null);
        say("connack", more);
    }

    private static void received(Mqtt5Publish message) {
        JsonObject more = new JsonObject();
        more.addProperty("topic", message.getTopic().toString());
        more.addProperty("payload",
            new String(message.getPayloadAsBytes(), StandardCharsets.UTF_8));
        more.addProperty("qos", message.getQos().getCode());
        more.addProperty("retain", message.isRetain());
        JsonArray pairs = new JsonArray();
        message.getUserProperties().asList().forEach(each -> {
            JsonArray pair = new JsonArray();
            pair.add(each.getName().toString());
            pair.add(each.getValue().toString());
            pairs.add(pair);
        });
        more.add("user", pairs);
        more.addProperty("content_type",
            message.getContentType().map(MqttUtf8String::toString).orElse(null));
        more.addProperty("response_topic",
            message.getResponseTopic().map(Object::toString).orElse(null));
        more.addProperty("correlation", text(message.getCorrelationData()));
        more.addProperty("message_expiry", message.getMessageExpiryInterval().isPresent()
            ? message.getMessageExpiryInterval().getAsLong() : null);
        say("message", more);
        if (!manual) {
            message.acknowledge();
        }
    }

    private static void subscribe(JsonObject command) {
        client.subscribeWith()
            .topicFilter(command.get("filter").getAsString())
            .qos(MqttQos.fromCode(command.get("qos").getAsInt()))
            .send()
            .whenComplete((answer, error) -> {
                if (error instanceof Mqtt5SubAckException) {
                    answer = ((Mqtt5SubAckException) error).getMqttMessage();
                }
                JsonArray codes = new JsonArray();
                answer.getReasonCodes().forEach(each -> codes.add(each.getCode()));
                JsonObject more = new JsonObject();
                more.add("codes", codes);
                say("suback", more);
            });
    }

    private static void publish(JsonObject command) {
        var message = Mqtt5Publish.builder()
            .topic(command.get("topic").getAsString())
            .payload(bytes(command, "payload"))
            .qos(MqttQos.fromCode(command.get("qos").getAsInt()))
            .retain(command.get("retain").getAsBoolean());
        JsonObject said = command.getAsJsonObject("properties");
        if (said.has("content_type")) {
            message = message.contentType(said.get("content_type").getAsString());
        }
        if (said.has("response_topic")) {
            message = message.responseTopic(said.get("response_topic").getAsString());
        }
        if (said.has("correlation")) {
            message = message.correlationData(bytes(said, "correlation"));
        }
        if (said.has("message_expiry")) {
            message = message.messageExpiryInterval(said.get("message_expiry").getAsLong());
        }
        if (said.has("user")) {
            var pairs = message.userProperties();
            for (var pair : said.getAsJsonArray("user")) {
                JsonArray both = pair.getAsJsonArray();
                pairs = pairs.add(both.get(0).getAsString(), both.get(1).getAsString());
            }
            message = pairs.applyUserProperties();
        }
        client.publish(message.build()).whenComplete((result, error) -> say("puback", code(outcome(result, error))));
    }

    private static int outcome(Mqtt5PublishResult result, Throwable error) {
        if (error == null) {
            error = result.getError().orElse(null);
        }
        if (error instanceof Mqtt5PubAckException) {
            return ((Mqtt5PubAckException) error).getMqttMessage().getReasonCode().getCode();
        }
        if (error instanceof Mqtt5PubRecException) {
            return ((Mqtt5PubRecException) error).getMqttMessage().getReasonCode().getCode();
        }
        if (error != null) {
            throw new IllegalStateException(error);
        }
        if (result instanceof Mqtt5PublishResult.Mqtt5Qos1Result) {
            return ((Mqtt5PublishResult.Mqtt5Qos1Result) result).getPubAck().getReasonCode().getCode();
        }
        return 0;
    }

    public static void main(String[] arguments) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonObject command = JSON.fromJson(line, JsonObject.class);
            switch (command.get("do").getAsString()) {
                case "connect": connect(command); break;
                case "subscribe": subscribe(command); break;
                case "publish": publish(command); break;
                default: client.disconnect();
            }
        }
        System.exit(0);
    }
}
