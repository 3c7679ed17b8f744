import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.hivemq.client.mqtt.MqttGlobalPublishFilter;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.mqtt3.Mqtt3AsyncClient;
import com.hivemq.client.mqtt.mqtt3.Mqtt3Client;
import com.hivemq.client.mqtt.mqtt3.exceptions.Mqtt3ConnAckException;
import com.hivemq.client.mqtt.mqtt3.exceptions.Mqtt3SubAckException;
import com.hivemq.client.mqtt.mqtt3.message.connect.Mqtt3Connect;
import com.hivemq.client.mqtt.mqtt3.message.publish.Mqtt3Publish;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;

/** HiveMQ's client with MQTT 3.1.1, driven by the commands of `tests.clients.peers`. */
public class Three {
    private static final Gson JSON = new Gson();
    private static Mqtt3AsyncClient client;
    private static boolean manual;

    private static synchronized void say(String event, JsonObject more) {
        more.addProperty("event", event);
        System.out.println(JSON.toJson(more));
    }

    private static byte[] bytes(JsonObject from, String name) {
        return from.get(name).getAsString().getBytes(StandardCharsets.UTF_8);
    }

    private static Mqtt3Publish message(JsonObject said) {
        return Mqtt3Publish.builder()
            .topic(said.get("topic").getAsString())
            .payload(bytes(said, "payload"))
            .qos(MqttQos.fromCode(said.get("qos").getAsInt()))
            .retain(said.get("retain").getAsBoolean())
            .build();
    }

    private static void connect(JsonObject command) {
        client = Mqtt3Client.builder()
            .identifier(command.get("id").getAsString())
            .serverHost("127.0.0.1")
            .serverPort(command.get("port").getAsInt())
            .addDisconnectedListener(context -> say("closed", new JsonObject()))
            .buildAsync();
        manual = command.has("manual") && command.get("manual").getAsBoolean();
        client.publishes(MqttGlobalPublishFilter.ALL, Three::received, true);
        var asked = Mqtt3Connect.builder()
            .cleanSession(command.get("clean").getAsBoolean())
            .keepAlive(command.get("keep_alive").getAsInt());
        if (command.has("user")) {
            asked = asked.simpleAuth()
                .username(command.get("user").getAsString())
                .password(bytes(command, "password"))
                .applySimpleAuth();
        }
        if (command.has("will")) {
            asked = asked.willPublish(message(command.getAsJsonObject("will")));
        }
        client.connect(asked.build()).whenComplete((answer, error) -> {
            if (error instanceof Mqtt3ConnAckException) {
                answer = ((Mqtt3ConnAckException) error).getMqttMessage();
            } else if (error != null) {
                throw new IllegalStateException(error);
            }
            JsonObject more = new JsonObject();
            more.addProperty("code", answer.getReturnCode().getCode());
            more.addProperty("present", answer.isSessionPresent());
            say("connack", more);
        });
    }

    private static void received(Mqtt3Publish message) {
        JsonObject more = new JsonObject();
        more.addProperty("topic", message.getTopic().toString());
        more.addProperty("payload",
            new String(message.getPayloadAsBytes(), StandardCharsets.UTF_8));
        more.addProperty("qos", message.getQos().getCode());
        more.addProperty("retain", message.isRetain());
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
                if (error instanceof Mqtt3SubAckException) {
                    answer = ((Mqtt3SubAckException) error).getMqttMessage();
                }
                JsonArray codes = new JsonArray();
                answer.getReturnCodes().forEach(each -> codes.add(each.getCode()));
                JsonObject more = new JsonObject();
                more.add("codes", codes);
                say("suback", more);
            });
    }

    private static void publish(JsonObject command) {
        client.publish(message(command)).whenComplete((sent, error) -> {
            if (error != null) {
                throw new IllegalStateException(error);
            }
            JsonObject more = new JsonObject();
            more.addProperty("code", 0);
            say("puback", more);
        });
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
