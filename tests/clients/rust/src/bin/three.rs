//! rumqttc with MQTT 3.1.1, driven by the commands of `tests.clients.peers`.
use rumqttc::{
    AsyncClient, ConnectionError, Event, EventLoop, LastWill, MqttOptions,
    Outgoing, Packet, QoS, SubscribeReasonCode,
};
use serde_json::{json, Value};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};

fn say(event: &str, mut more: Value) {
    more["event"] = json!(event);
    println!("{more}");
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().into()
}

fn qos(value: &Value) -> QoS {
    [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][value.as_u64().unwrap() as usize]
}

fn connect(command: &Value) -> (AsyncClient, EventLoop) {
    let port = command["port"].as_u64().unwrap() as u16;
    let mut options = MqttOptions::new(text(&command["id"]), "127.0.0.1", port);
    options.set_keep_alive(Duration::from_secs(command["keep_alive"].as_u64().unwrap()));
    options.set_clean_session(command["clean"].as_bool().unwrap());
    options.set_manual_acks(command["manual"] == true);
    if command["user"].is_string() {
        options.set_credentials(text(&command["user"]), text(&command["password"]));
    }
    let will = &command["will"];
    if will.is_object() {
        let retain = will["retain"].as_bool().unwrap();
        let payload = text(&will["payload"]);
        options.set_last_will(LastWill::new(text(&will["topic"]), payload, qos(&will["qos"]), retain));
    }
    AsyncClient::new(options, 100)
}

/// Say what happens, until the connection ends: nothing is done about that.
async fn watch(mut events: EventLoop) {
    loop {
        match events.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(answer))) => say(
                "connack",
                json!({ "code": answer.code as u8, "present": answer.session_present }),
            ),
            Ok(Event::Incoming(Packet::SubAck(answer))) => {
                let number = |each: &SubscribeReasonCode| match each {
                    SubscribeReasonCode::Success(qos) => *qos as u8,
                    SubscribeReasonCode::Failure => 0x80,
                };
                let codes: Vec<u8> = answer.return_codes.iter().map(number).collect();
                say("suback", json!({ "codes": codes }))
            }
            Ok(Event::Incoming(Packet::PubAck(_) | Packet::PubComp(_)))
            | Ok(Event::Outgoing(Outgoing::Publish(0))) => say("puback", json!({ "code": 0 })),
            Ok(Event::Incoming(Packet::Publish(message))) => say(
                "message",
                json!({
                    "topic": message.topic, "payload": String::from_utf8_lossy(&message.payload),
                    "qos": message.qos as u8, "retain": message.retain, "dup": message.dup,
                }),
            ),
            Ok(_) => (),
            Err(ConnectionError::ConnectionRefused(reason)) => {
                return say("connack", json!({ "code": reason as u8, "present": false }))
            }
            Err(error) => return say("closed", json!({ "error": error.to_string() })),
        }
    }
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
            ("subscribe", Some(client)) => {
                let filter = text(&command["filter"]);
                client.subscribe(filter, qos(&command["qos"])).await.unwrap()
            }
            ("publish", Some(client)) => {
                let retain = command["retain"].as_bool().unwrap();
                let (topic, payload) = (text(&command["topic"]), text(&command["payload"]));
                client.publish(topic, qos(&command["qos"]), retain, payload).await.unwrap()
            }
            ("disconnect", Some(client)) => client.disconnect().await.unwrap(),
            (other, _) => panic!("{other}?"),
        }
    }
}
