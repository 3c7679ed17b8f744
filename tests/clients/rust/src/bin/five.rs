//! rumqttc, driven by the commands of `tests.clients.peers`.
use rumqttc::v5::mqttbytes::v5::{
    ConnectProperties, LastWill, Packet, Publish, PublishProperties, SubscribeProperties,
};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::{AsyncClient, ConnectionError, Event, EventLoop, MqttOptions};
use rumqttc::Outgoing;
use serde_json::{json, Value};
use std::fmt::Debug;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};

fn say(event: &str, mut more: Value) {
    more["event"] = json!(event);
    println!("{more}");
}

/// The number of a reason that the crate has as a name.
fn code(reason: impl Debug) -> u8 {
    match format!("{reason:?}").as_str() {
        "Success" | "Success(AtMostOnce)" => 0,
        "Success(AtLeastOnce)" => 1,
        "Success(ExactlyOnce)" => 2,
        "NoMatchingSubscribers" => 0x10,
        "BadUserNamePassword" => 0x86,
        "NotAuthorized" => 0x87,
        other => panic!("what number has {other}?"),
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(String::from)
}

fn qos(value: &Value) -> QoS {
    [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][value.as_u64().unwrap() as usize]
}

fn connect(command: &Value) -> (AsyncClient, EventLoop) {
    let port = command["port"].as_u64().unwrap() as u16;
    let mut options = MqttOptions::new(text(&command["id"]).unwrap(), "127.0.0.1", port);
    options.set_keep_alive(Duration::from_secs(command["keep_alive"].as_u64().unwrap()));
    options.set_clean_start(command["clean"].as_bool().unwrap());
    options.set_manual_acks(command["manual"] == true);
    if let Some(user) = text(&command["user"]) {
        options.set_credentials(user, text(&command["password"]).unwrap());
    }
    let will = &command["will"];
    if let Some(topic) = text(&will["topic"]) {
        let payload = text(&will["payload"]).unwrap();
        let retain = will["retain"].as_bool().unwrap();
        options.set_last_will(LastWill::new(topic, payload, qos(&will["qos"]), retain, None));
    }
    options.set_connect_properties(ConnectProperties {
        session_expiry_interval: command["expiry"].as_u64().map(|n| n as u32),
        max_packet_size: command["maximum_packet"].as_u64().map(|n| n as u32),
        topic_alias_max: command["aliases"].as_u64().map(|n| n as u16),
        ..ConnectProperties::new()
    });
    AsyncClient::new(options, 100)
}

fn received(message: Publish) {
    let said = message.properties.unwrap_or_default();
    say(
        "message",
        json!({
            "topic": String::from_utf8_lossy(&message.topic),
            "payload": String::from_utf8_lossy(&message.payload),
            "qos": message.qos as u8, "retain": message.retain, "dup": message.dup,
            "user": said.user_properties, "content_type": said.content_type,
            "response_topic": said.response_topic,
            "correlation": said.correlation_data.map(|b| String::from_utf8_lossy(&b).into_owned()),
            "message_expiry": said.message_expiry_interval,
            "identifiers": said.subscription_identifiers, "alias": said.topic_alias,
        }),
    );
}

/// Say what happens, until the connection ends: nothing is done about that.
async fn watch(mut events: EventLoop) {
    loop {
        match events.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(answer))) => {
                let said = answer.properties;
                say(
                    "connack",
                    json!({
                        "code": code(answer.code), "present": answer.session_present,
                        "assigned": said.as_ref().and_then(|p| p.assigned_client_identifier.clone()),
                        "keep_alive": said.as_ref().and_then(|p| p.server_keep_alive),
                    }),
                )
            }
            Ok(Event::Incoming(Packet::SubAck(answer))) => {
                let codes: Vec<u8> = answer.return_codes.iter().map(code).collect();
                say("suback", json!({ "codes": codes }))
            }
            Ok(Event::Incoming(Packet::PubAck(answer))) => {
                say("puback", json!({ "code": code(answer.reason) }))
            }
            // A refusal ends the exchange; of what is not refused PUBCOMP tells.
            Ok(Event::Incoming(Packet::PubRec(answer))) if code(answer.reason) >= 0x80 => {
                say("puback", json!({ "code": code(answer.reason) }))
            }
            Ok(Event::Incoming(Packet::PubComp(answer))) => {
                say("puback", json!({ "code": code(answer.reason) }))
            }
            Ok(Event::Outgoing(Outgoing::Publish(0))) => say("puback", json!({ "code": 0 })),
            Ok(Event::Incoming(Packet::Publish(message))) => received(message),
            Ok(_) => (),
            Err(ConnectionError::ConnectionRefused(reason)) => {
                return say("connack", json!({ "code": code(reason), "present": false }))
            }
            Err(error) => return say("closed", json!({ "error": error.to_string() })),
        }
    }
}

async fn subscribe(client: &AsyncClient, command: &Value) {
    let filter = text(&command["filter"]).unwrap();
    let asked = qos(&command["qos"]);
    match command["identifier"].as_u64() {
        None => client.subscribe(filter, asked).await,
        Some(number) => {
            let said = SubscribeProperties { id: Some(number as usize), user_properties: vec![] };
            client.subscribe_with_properties(filter, asked, said).await
        }
    }
    .unwrap()
}

async fn publish(client: &AsyncClient, command: &Value) {
    let given = &command["properties"];
    let said = PublishProperties {
        message_expiry_interval: given["message_expiry"].as_u64().map(|n| n as u32),
        topic_alias: given["alias"].as_u64().map(|n| n as u16),
        response_topic: text(&given["response_topic"]),
        correlation_data: text(&given["correlation"]).map(|s| s.into()),
        user_properties: serde_json::from_value(given["user"].clone()).unwrap_or_default(),
        content_type: text(&given["content_type"]),
        ..PublishProperties::default()
    };
    let topic = text(&command["topic"]).unwrap();
    let payload = text(&command["payload"]).unwrap();
    let retain = command["retain"].as_bool().unwrap();
    client
        .publish_with_properties(topic, qos(&command["qos"]), retain, payload, said)
        .await
        .unwrap()
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut client: Option<AsyncClient> = None;
    while let Some(line) = lines.next_line().await.unwrap() {
        let command: Value = serde_json::from_str(&line).unwrap();
        match (command["do"].as_str().unwrap(), &client) {
            ("connect", _) => {
                let (made, events) = connect(&command);
                client = Some(made);
                tokio::spawn(watch(events));
            }
            ("subscribe", Some(client)) => subscribe(client, &command).await,
            ("publish", Some(client)) => publish(client, &command).await,
            ("disconnect", Some(client)) => client.disconnect().await.unwrap(),
            (other, _) => panic!("{other}?"),
        }
    }
}
