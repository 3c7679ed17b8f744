// paho.golang, driven by the commands of `tests.clients.peers`.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/eclipse/paho.golang/paho"
	"github.com/xdg-go/scram"
)

type properties struct {
	User          [][2]string `json:"user"`
	ContentType   string      `json:"content_type"`
	ResponseTopic string      `json:"response_topic"`
	Correlation   string      `json:"correlation"`
	MessageExpiry *uint32     `json:"message_expiry"`
	Alias         *uint16     `json:"alias"`
}

type message struct {
	Topic   string `json:"topic"`
	Payload string `json:"payload"`
	QoS     byte   `json:"qos"`
	Retain  bool   `json:"retain"`
}

type command struct {
	message
	Do            string     `json:"do"`
	Port          int        `json:"port"`
	ID            string     `json:"id"`
	Clean         bool       `json:"clean"`
	KeepAlive     uint16     `json:"keep_alive"`
	Expiry        *uint32    `json:"expiry"`
	User          string     `json:"user"`
	Password      string     `json:"password"`
	Scram         bool       `json:"scram"`
	Will          *message   `json:"will"`
	MaximumPacket *uint32    `json:"maximum_packet"`
	Aliases       *uint16    `json:"aliases"`
	Manual        bool       `json:"manual"`
	Filter        string     `json:"filter"`
	Identifier    *int       `json:"identifier"`
	Properties    properties `json:"properties"`
}

type fields map[string]any

var (
	client *paho.Client
	saying sync.Mutex
)

func say(event string, more fields) {
	more["event"] = event
	line, _ := json.Marshal(more)
	saying.Lock()
	defer saying.Unlock()
	fmt.Println(string(line))
}

// Prove that a password is known, by SCRAM-SHA-256: what AUTH packets carry.
type proof struct{ *scram.ClientConversation }

func (p proof) Authenticate(said *paho.Auth) *paho.Auth {
	answer, _ := p.Step(string(said.Properties.AuthData))
	return &paho.Auth{ReasonCode: 0x18, Properties: &paho.AuthProperties{
		AuthMethod: "SCRAM-SHA-256", AuthData: []byte(answer)}}
}

func (p proof) Authenticated() {}

func connect(c command) {
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", c.Port))
	if err != nil {
		panic(err)
	}
	config := paho.ClientConfig{
		Conn:                       conn,
		EnableManualAcknowledgment: c.Manual,
		OnPublishReceived:          []func(paho.PublishReceived) (bool, error){received},
		OnServerDisconnect:         func(d *paho.Disconnect) { say("closed", fields{"code": d.ReasonCode}) },
		OnClientError:              func(error) { say("closed", fields{}) },
	}
	wanted := &paho.Connect{ClientID: c.ID, CleanStart: c.Clean, KeepAlive: c.KeepAlive}
	wanted.Properties = &paho.ConnectProperties{SessionExpiryInterval: c.Expiry,
		MaximumPacketSize: c.MaximumPacket, TopicAliasMaximum: c.Aliases}
	if c.Scram {
		asked, err := scram.SHA256.NewClient(c.User, c.Password, "")
		if err != nil {
			panic(err)
		}
		conversation := asked.NewConversation()
		first, _ := conversation.Step("")
		config.AuthHandler = proof{conversation}
		wanted.Properties.AuthMethod, wanted.Properties.AuthData = "SCRAM-SHA-256", []byte(first)
	} else if c.User != "" {
		wanted.Username, wanted.UsernameFlag = c.User, true
		wanted.Password, wanted.PasswordFlag = []byte(c.Password), true
	}
	if w := c.Will; w != nil {
		wanted.WillMessage = &paho.WillMessage{Topic: w.Topic, Payload: []byte(w.Payload), QoS: w.QoS, Retain: w.Retain}
	}
	client = paho.NewClient(config)
	answer, err := client.Connect(context.Background(), wanted)
	if answer == nil {
		say("connack", fields{"code": nil, "error": err.Error()})
		return
	}
	more := fields{"code": answer.ReasonCode, "present": answer.SessionPresent, "assigned": nil, "keep_alive": nil}
	if p := answer.Properties; p != nil {
		if p.AssignedClientID != "" {
			more["assigned"] = p.AssignedClientID
		}
		more["keep_alive"] = p.ServerKeepAlive
	}
	say("connack", more)
}

func optional(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func received(r paho.PublishReceived) (bool, error) {
	p := r.Packet.Properties
	pairs, identifiers := [][2]string{}, []int{}
	for _, each := range p.User {
		pairs = append(pairs, [2]string{each.Key, each.Value})
	}
	if p.SubscriptionIdentifier != nil {
		identifiers = append(identifiers, *p.SubscriptionIdentifier)
	}
	say("message", fields{
		"topic": r.Packet.Topic, "payload": string(r.Packet.Payload), "qos": r.Packet.QoS,
		"retain": r.Packet.Retain, "dup": r.Packet.Duplicate(), "user": pairs,
		"content_type": optional(p.ContentType), "response_topic": optional(p.ResponseTopic),
		"correlation": optional(string(p.CorrelationData)), "message_expiry": p.MessageExpiry,
		"identifiers": identifiers, "alias": p.TopicAlias,
	})
	return true, nil
}

func subscribe(c command) {
	asked := &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: c.Filter, QoS: c.QoS}}}
	if c.Identifier != nil {
		asked.Properties = &paho.SubscribeProperties{SubscriptionIdentifier: c.Identifier}
	}
	answer, err := client.Subscribe(context.Background(), asked)
	if answer == nil {
		panic(err)
	}
	codes := []int{}
	for _, each := range answer.Reasons {
		codes = append(codes, int(each))
	}
	say("suback", fields{"codes": codes})
}

func publish(c command) {
	p := &paho.PublishProperties{ContentType: c.Properties.ContentType, ResponseTopic: c.Properties.ResponseTopic,
		MessageExpiry: c.Properties.MessageExpiry, TopicAlias: c.Properties.Alias}
	if c.Properties.Correlation != "" {
		p.CorrelationData = []byte(c.Properties.Correlation)
	}
	for _, each := range c.Properties.User {
		p.User.Add(each[0], each[1])
	}
	answer, err := client.Publish(context.Background(),
		&paho.Publish{Topic: c.Topic, Payload: []byte(c.Payload), QoS: c.QoS, Retain: c.Retain, Properties: p})
	if answer == nil && err != nil {
		panic(err)
	}
	code := byte(0)
	if answer != nil {
		code = answer.ReasonCode
	}
	say("puback", fields{"code": code})
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
			publish(c)
		case "disconnect":
			client.Disconnect(&paho.Disconnect{})
			say("closed", fields{})
		}
	}
}
