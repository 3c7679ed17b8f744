// paho.mqtt.golang, which speaks 3.1.1, driven by the commands of `tests.clients.peers`.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"
)

type message struct {
	Topic   string `json:"topic"`
	Payload string `json:"payload"`
	QoS     byte   `json:"qos"`
	Retain  bool   `json:"retain"`
}

type command struct {
	message
	Do        string   `json:"do"`
	Port      int      `json:"port"`
	ID        string   `json:"id"`
	Clean     bool     `json:"clean"`
	KeepAlive int      `json:"keep_alive"`
	User      string   `json:"user"`
	Password  string   `json:"password"`
	Will      *message `json:"will"`
	Manual    bool     `json:"manual"`
	Filter    string   `json:"filter"`
}

type fields map[string]any

var (
	client mqtt.Client
	saying sync.Mutex
)

func say(event string, more fields) {
	more["event"] = event
	line, _ := json.Marshal(more)
	saying.Lock()
	defer saying.Unlock()
	fmt.Println(string(line))
}

func connect(c command) {
	options := mqtt.NewClientOptions().
		AddBroker(fmt.Sprintf("tcp://127.0.0.1:%d", c.Port)).
		SetProtocolVersion(4). // or it tries 3.1 when it is refused
		SetClientID(c.ID).
		SetCleanSession(c.Clean).
		SetKeepAlive(time.Duration(c.KeepAlive) * time.Second).
		SetAutoReconnect(false).
		SetAutoAckDisabled(c.Manual).
		SetUsername(c.User).
		SetPassword(c.Password).
		SetDefaultPublishHandler(received).
		SetConnectionLostHandler(func(mqtt.Client, error) { say("closed", fields{}) })
	if w := c.Will; w != nil {
		options.SetWill(w.Topic, w.Payload, w.QoS, w.Retain)
	}
	client = mqtt.NewClient(options)
	token := client.Connect().(*mqtt.ConnectToken)
	token.Wait()
	say("connack", fields{"code": token.ReturnCode(), "present": token.SessionPresent()})
}

func received(_ mqtt.Client, m mqtt.Message) {
	say("message", fields{"topic": m.Topic(), "payload": string(m.Payload()), "qos": m.Qos(),
		"retain": m.Retained(), "dup": m.Duplicate()})
}

func subscribe(c command) {
	token := client.Subscribe(c.Filter, c.QoS, nil).(*mqtt.SubscribeToken)
	token.Wait()
	codes := []int{}
	for _, code := range token.Result() { // of a shared subscription by its filter alone
		codes = append(codes, int(code))
	}
	say("suback", fields{"codes": codes})
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			panic(err)
		}
		switch c.Do {
		case "connect":
			connect(c)
		case "subscribe":
			subscribe(c)
		case "publish":
			if token := client.Publish(c.Topic, c.QoS, c.Retain, c.Payload); token.Wait() && token.Error() != nil {
				panic(token.Error())
			}
			say("puback", fields{"code": 0})
		case "disconnect":
			client.Disconnect(250)
			say("closed", fields{})
		}
	}
}
