/*
 * Many publishers: the part of loadgen.c, which includes it, for --pairs and --fan-in.
 *
 * Each publisher has a topic of its own. With --pairs each topic has one subscriber; with --fan-in
 * one subscriber has them all. Message n of publisher k has the number n * P + k, which stands at
 * the front of its payload: whoever receives it knows whose it is, and checks topic, payload, order
 * and number of every delivery. Every message is a write of its own.
 *
 * With --rate publisher after publisher sends, each message when it is due, and latency counts from
 * then; otherwise each publisher has --window messages in flight, and latency counts from when
 * each was sent. With --qos 1 the subscriber acknowledges (what it reads at once in one write), and
 * `confirmation` is the time until the publisher is acknowledged. With --away subscribers leave their
 * persistent sessions alone until all is published: what they fetch then is checked as always, and
 * `delivered`, with what is computed from it, is what was acknowledged meanwhile.
 *
 * Like the paced mode it does not sleep while anything is under way, unless --sleep says so: then
 * latencies have the wake-ups of its own core in them, with every server alike.
 */

enum {
    IDENTIFIERS = 65535, /* of packets, from 1 */
    EARLY = 64,          /* an acknowledgement may be so many messages before its turn */
    PAUSE_NS = 10000000, /* with --sleep: then it looks at the time again */
    SENDS_A_TURN = 64,   /* paced: then it looks at its sockets again */
};

/* Connection first: what epoll hands out is one of these when it is a publisher. */
typedef struct {
    Connection connection;
    uint8_t *frame;
    size_t length, gone;      /* of the frame that was begun, bytes that the kernel has taken */
    size_t stamp, identifier; /* where these stand in it */
    uint64_t wanted;          /* paced: messages that have been due so far */
    uint64_t sent;            /* messages begun */
    uint64_t next;            /* what its subscriber has to receive next */
    uint64_t received;        /* of its messages, by its subscriber */
    uint64_t confirmed;       /* all before this one */
    uint64_t early;           /* bit i: this one and i + 1 more are confirmed, too */
    int64_t *times;           /* by the window: when each in flight was sent */
    bool queued;              /* in the list of those that may be able to send */
} Publisher;

static struct {
    int count;
    Publisher *publishers;
    Publisher **ready;
    int ready_count;
    Packet *answers;          /* PUBACKs of each subscriber that have not gone */
    uint8_t *payload;
    uint64_t sent, received, confirmed; /* of all */
    uint64_t first, total;    /* paced: messages that are warm-up, and all */
    int64_t start, measured, end;
    double period;
    uint64_t surplus, reordered, altered, again, unasked;
    uint64_t before_sent, before_received, before_confirmed;
    bool started;
    int64_t last;             /* when something arrived */
    Histogram latency, confirmation, late, turn;
    int64_t busy;
} many;

static void check_many(void)
{
    bool is_mqtt = options.protocol->greet_as_publisher == mqtt_greet_as_publisher;
    if (options.pairs > 0 && options.fan_in > 0)
        die("--pairs and --fan-in: one of them");
    if (options.protocol->scan == syndicate_scan)
        die("--pairs and --fan-in: not with syndicate");
    if ((options.qos > 0 || options.kept) && !is_mqtt)
        die("--qos 1 and --kept: with mqtt only");
    if (options.away && options.qos == 0)
        die("--away wants --qos 1: others are not kept");
    if (options.payload_min != options.payload_max || options.payload_min < STAMP_SIZE)
        die("--pairs and --fan-in need payloads of one size of at least %d bytes", STAMP_SIZE);
    if (options.verify || options.publishers > 1 || options.topics > 1 || options.interval > 0 ||
        options.stalled > 0 || options.reconnect || options.messages > 0)
        die("--pairs and --fan-in: not with --verify (it always does), --publishers, --topics, "
            "--interval, --stalled, --reconnect or --messages");
    many.count = options.publishers = options.topics = options.pairs + options.fan_in;
    options.subscribers = options.pairs > 0 ? options.pairs : 1;
    options.wildcard = options.fan_in > 0;
}

static int64_t many_due(uint64_t sequence)
{
    return many.start + (int64_t)((double)sequence * many.period);
}

/* When message `n` of a publisher was due, and whether that is in the measured time. */
static bool measured_since(const Publisher *publisher, uint64_t n, int64_t *due)
{
    if (options.rate > 0) {
        uint64_t k = (uint64_t)(publisher - many.publishers);
        uint64_t sequence = n * (uint64_t)many.count + k;
        *due = many_due(sequence);
        return sequence >= many.first;
    }
    *due = publisher->times[n % options.window];
    return *due >= many.measured;
}

static void may_send(Publisher *publisher)
{
    if (publisher->queued)
        return;
    publisher->queued = true;
    many.ready[many.ready_count++] = publisher;
}

static void many_delivery(Connection *subscriber, const Frame *frame)
{
    uint64_t sequence = sequence_of(frame);
    uint64_t k = sequence % (uint64_t)many.count, n = sequence / (uint64_t)many.count;
    int number = (int)(subscriber - subscribers);
    if (options.qos > 0) {
        Packet *answer = &many.answers[number];
        put(answer, "\x40\x02", 2);
        put_byte(answer, frame->identifier >> 8);
        put_byte(answer, frame->identifier & 0xff);
    }
    Publisher *publisher = &many.publishers[k];
    bool its = options.fan_in > 0 || (int)k == number;
    if (!its || n >= publisher->sent || frame->payload_length != options.payload_min ||
        frame->topic_length != topic_lengths[k] ||
        memcmp(frame->topic, topic_names[k], frame->topic_length) != 0 ||
        memcmp(frame->payload + STAMP_SIZE, many.payload + STAMP_SIZE,
               frame->payload_length - STAMP_SIZE) != 0) {
        many.altered++;
        return;
    }
    if (frame->again && n < publisher->next) {
        many.again++;
        return;
    }
    publisher->received++;
    many.received++;
    if (n < publisher->next) {
        many.reordered++;
        return;
    }
    int64_t due;
    if (!options.away && measured_since(publisher, n, &due))
        record(&many.latency, arrived - due);
    publisher->next = n + 1;
    may_send(publisher);
}

static void many_acknowledged(Connection *connection, unsigned identifier)
{
    Publisher *publisher = (Publisher *)connection;
    uint64_t expected = publisher->confirmed % IDENTIFIERS + 1;
    uint64_t ahead = (identifier + IDENTIFIERS - expected) % IDENTIFIERS;
    uint64_t n = publisher->confirmed + ahead;
    bool known = ahead > 0 && ahead <= EARLY && (publisher->early >> (ahead - 1) & 1) != 0;
    if (identifier == 0 || n >= publisher->sent || ahead > EARLY || known) {
        many.unasked++;
        return;
    }
    int64_t due;
    if (measured_since(publisher, n, &due))
        record(&many.confirmation, arrived - due);
    many.confirmed++;
    if (ahead > 0) {
        publisher->early |= (uint64_t)1 << (ahead - 1);
        return;
    }
    bool more;
    do {
        publisher->confirmed++;
        more = (publisher->early & 1) != 0;
        publisher->early >>= 1;
    } while (more);
    may_send(publisher);
}

/* Whether its next message is due, or has room in its window. */
static bool has_one(const Publisher *publisher, int64_t t)
{
    if (options.rate > 0)
        return publisher->sent < publisher->wanted;
    uint64_t done = publisher->next;
    if (options.away || (options.qos > 0 && publisher->confirmed < done))
        done = publisher->confirmed;
    return t < many.end && publisher->sent - done < options.window;
}

/* Hand the kernel what is left of bytes; say whether it has taken them all. */
static bool hand_over(Connection *connection, const uint8_t *bytes, size_t length, size_t *gone)
{
    ssize_t sent = send(connection->fd, bytes + *gone, length - *gone, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) {
        close_connection(connection);
        return false;
    }
    *gone += sent > 0 ? (size_t)sent : 0;
    if (*gone < length)
        watch(EPOLL_CTL_MOD, connection, EPOLLIN | EPOLLOUT);
    return *gone == length;
}

/* Send what it may, until the kernel takes no more. */
static void many_send(Publisher *publisher, int64_t t)
{
    Connection *connection = &publisher->connection;
    while (connection->open && publisher->gone == publisher->length) {
        if (connection->pong_owed) { /* its few bytes find room, or the server does not read */
            write_all(connection, options.protocol->pong, strlen(options.protocol->pong));
            connection->pong_owed = false;
        }
        if (!has_one(publisher, t))
            break;
        uint64_t n = publisher->sent++;
        uint64_t sequence = n * (uint64_t)many.count + (uint64_t)(publisher - many.publishers);
        memcpy(publisher->frame + publisher->stamp, &sequence, STAMP_SIZE);
        if (options.qos > 0) {
            unsigned identifier = (unsigned)(n % IDENTIFIERS) + 1;
            publisher->frame[publisher->identifier] = (uint8_t)(identifier >> 8);
            publisher->frame[publisher->identifier + 1] = (uint8_t)(identifier & 0xff);
        }
        if (options.rate == 0)
            publisher->times[n % options.window] = t;
        else if (sequence >= many.first)
            record(&many.late, t - many_due(sequence));
        many.sent++;
        publisher->gone = 0;
        hand_over(connection, publisher->frame, publisher->length, &publisher->gone);
    }
}

static void answer(Connection *subscriber)
{
    Packet *packet = &many.answers[subscriber - subscribers];
    size_t gone = 0;
    if (!subscriber->open || packet->length == 0)
        return;
    hand_over(subscriber, packet->at, packet->length, &gone);
    packet->length -= gone;
    memmove(packet->at, packet->at + gone, packet->length);
}

static void take_in(const struct epoll_event *event);

static void take_in_when_ready(void)
{
    struct epoll_event event;
    if (epoll_wait(poller, &event, 1, 10) > 0)
        take_in(&event);
}

/* The clients of persistent sessions come back and take what was kept for them. */
static void fetch(void)
{
    for (int i = 0; i < options.subscribers; i++) {
        Packet packet = {0};
        char client[32];
        snprintf(client, sizeof client, "loadgen-sub-%d", i);
        put_mqtt_connect(&packet, client, false);
        open_connection(&subscribers[i]);
        greet(&subscribers[i], &packet, 1);
        answer(&subscribers[i]);
    }
    int64_t patience = (int64_t)(options.drain * 1e9);
    many.last = now_ns();
    while (many.received < many.sent && now_ns() - many.last < patience)
        take_in_when_ready();
}

static void connect_many(void)
{
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    poller = epoll_create1(EPOLL_CLOEXEC);
    carry_room = options.payload_max + HEADER_ROOM;
    read_buffer = allocate(carry_room + READ_SIZE, 1);
    subscribers = allocate((size_t)options.subscribers, sizeof *subscribers);
    many.publishers = allocate((size_t)many.count, sizeof *many.publishers);
    many.ready = allocate((size_t)many.count, sizeof *many.ready);
    many.answers = allocate((size_t)options.subscribers, sizeof *many.answers);
    many.payload = allocate(options.payload_max + 8, 1);
    for (size_t i = 0; i < options.payload_max; i += 8) {
        uint64_t filler = pseudo_random();
        memcpy(many.payload + i, &filler, 8);
    }
    for (int i = 0; i < options.subscribers; i++) {
        Packet packet = {0};
        open_connection(&subscribers[i]);
        greet(&subscribers[i], &packet, options.protocol->greet_as_subscriber(&packet, i));
        if (options.away) {
            write_all(&subscribers[i], "\xe0\x00", 2); /* DISCONNECT */
            shutdown(subscribers[i].fd, SHUT_WR);
            while (subscribers[i].open) /* until the server has seen it, and hangs up */
                take_in_when_ready();
        }
    }
    for (int i = 0; i < many.count; i++) {
        Publisher *publisher = &many.publishers[i];
        Packet packet = {0}, frame = {0};
        publisher->connection.is_publisher = true;
        open_connection(&publisher->connection);
        greet(&publisher->connection, &packet, options.protocol->greet_as_publisher(&packet));
        options.protocol->publication(&frame, i, many.payload, options.payload_max);
        publisher->frame = frame.at;
        publisher->length = publisher->gone = frame.length;
        publisher->stamp = frame.length - options.protocol->trailer - options.payload_max;
        publisher->identifier = publisher->stamp - 2;
        if (options.rate == 0)
            publisher->times = allocate(options.window, sizeof *publisher->times);
    }
}

static bool all_done(void)
{
    bool delivered = options.away || many.received >= many.sent;
    return delivered && (options.qos == 0 || many.confirmed >= many.sent);
}

static void take_in(const struct epoll_event *event)
{
    Connection *connection = event->data.ptr;
    if (!connection->open)
        return;
    if ((event->events & EPOLLOUT) != 0) {
        watch(EPOLL_CTL_MOD, connection, EPOLLIN);
        if (connection->is_publisher) {
            Publisher *publisher = (Publisher *)connection;
            if (publisher->gone < publisher->length)
                hand_over(connection, publisher->frame, publisher->length, &publisher->gone);
            may_send(publisher);
        } else {
            answer(connection);
        }
    }
    if (!connection->open || (event->events & ~(uint32_t)EPOLLOUT) == 0)
        return;
    if (receive(connection))
        many.last = arrived;
    if (options.away && connection->open) {
        /* A server without TCP_NODELAY waits with the rest of a message for the ACK of its
         * beginning, and the kernel for something to send with it: 40 ms, again and again. */
        int on = 1;
        setsockopt(connection->fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
    }
    if (!connection->is_publisher)
        answer(connection);
    else if (connection->pong_owed)
        may_send((Publisher *)connection);
}

static Before run_many(void)
{
    Before before = {0};
    prctl(PR_SET_TIMERSLACK, 1000UL);
    many.latency.bits = many.confirmation.bits = many.late.bits = many.turn.bits = FINE;
    many.start = now_ns() + (int64_t)(LEAD_SECONDS * 1e9);
    many.measured = many.start + (int64_t)(options.warmup * 1e9);
    many.end = many.measured + (int64_t)(options.seconds * 1e9);
    if (options.rate > 0) {
        many.period = 1e9 / options.rate;
        many.first = (uint64_t)(options.warmup * options.rate);
        many.total = many.first + (uint64_t)(options.seconds * options.rate);
        if (many.total <= many.first)
            die("--rate: no message is due in %g s", options.seconds);
        many.measured = many_due(many.first);
        many.end = many_due(many.total);
    } else {
        for (int i = 0; i < many.count; i++)
            may_send(&many.publishers[i]);
    }
    int64_t patience = (int64_t)(options.drain * 1e9), looked = now_ns();
    uint64_t next = 0; /* paced: what is due next */
    struct epoll_event events[256];
    many.last = looked;
    for (;;) {
        int64_t t = now_ns();
        if (many.started) {
            record(&many.turn, t - looked);
        } else if (t >= many.measured) {
            before = (Before){.own = own_cpu(), .queued = seconds_queued("/proc/self/schedstat"),
                              .server = server_usage()};
            many.before_sent = many.sent;
            many.before_received = many.received;
            many.before_confirmed = many.confirmed;
            many.started = true;
            many.measured = t = now_ns();
        }
        looked = t;
        bool something = many.ready_count > 0;
        for (int i = 0; i < SENDS_A_TURN && next < many.total && many_due(next) <= t; i++) {
            Publisher *publisher = &many.publishers[next++ % (uint64_t)many.count];
            publisher->wanted++;
            may_send(publisher);
            something = true;
        }
        for (int i = 0; i < many.ready_count; i++) {
            many.ready[i]->queued = false;
            many_send(many.ready[i], t);
        }
        many.ready_count = 0;
        bool finished = many.started && t >= many.end && next >= many.total;
        if (finished && all_done())
            break;
        if (finished && t - many.end > patience && t - many.last > patience)
            break;
        int ready = epoll_wait(poller, events, 256, 0);
        if (ready == 0 && !something) {
            int64_t until = next < many.total ? many_due(next) : t + PAUSE_NS;
            if (options.sleep)
                doze(until - t);
            else if (next < many.total && all_done())
                doze(until - AWAKE_NS - t);
            looked = now_ns();
        }
        for (int i = 0; i < ready; i++)
            take_in(&events[i]);
        if (many.started && (ready > 0 || something))
            many.busy += now_ns() - t;
    }
    return before;
}

static int measure_many(void)
{
    connect_many();
    Before before = run_many();
    Usage after = server_usage();
    double queued = seconds_queued("/proc/self/schedstat") - before.queued;
    uint64_t delivered = options.away ? many.confirmed - many.before_confirmed
                                      : many.received - many.before_received;
    uint64_t sent = many.sent - many.before_sent;
    double seconds = (double)(many.last - many.measured) * 1e-9;
    if (seconds <= 0 || delivered == 0)
        die("nothing was delivered in %g s of publishing", options.seconds);
    if (options.away && !options.leave)
        fetch();
    for (double end = now() + LINGER_SECONDS; now() < end;) /* for what comes once too often */
        take_in_when_ready();

    uint64_t lost = 0, unconfirmed = 0;
    int closed = 0;
    bool publisher_closed = false;
    for (int i = 0; i < many.count; i++) {
        const Publisher *publisher = &many.publishers[i];
        if (options.leave)
            many.received = many.sent; /* as far as anybody can say */
        else if (publisher->received < publisher->sent)
            lost += publisher->sent - publisher->received;
        else
            many.surplus += publisher->received - publisher->sent;
        publisher_closed |= !publisher->connection.open;
    }
    if (options.qos > 0)
        unconfirmed = many.sent - many.confirmed;
    for (int i = 0; i < options.subscribers; i++)
        closed += !options.leave && !subscribers[i].open;
    many.surplus += many.again;

    double cpu = after.exact - before.server.exact;
    printf("{\"protocol\": \"%s\", \"kind\": \"%s\", \"publishers\": %d, \"subscribers\": %d, "
           "\"qos\": %d, \"kept\": %s, \"away\": %s, \"payload\": %zu, \"rate\": %.6g, \"window\": %" PRIu64
           ", \"seconds\": %.4f, \"published\": %" PRIu64 ", \"delivered\": %" PRIu64
           ", \"confirmed\": %" PRIu64 ", ",
           options.protocol->name, options.pairs > 0 ? "pairs" : "fan-in", many.count,
           options.subscribers, options.qos, options.kept ? "true" : "false",
           options.away ? "true" : "false", options.payload_max,
           options.rate, options.rate > 0 ? 0 : options.window, seconds, sent, delivered,
           many.confirmed - many.before_confirmed);
    printf("\"lost\": %" PRIu64 ", \"surplus\": %" PRIu64 ", \"reordered\": %" PRIu64
           ", \"altered\": %" PRIu64 ", \"unconfirmed\": %" PRIu64 ", \"unasked\": %" PRIu64
           ", \"subscribers_closed\": %d, \"publisher_closed\": %s, ",
           lost, many.surplus, many.reordered, many.altered, unconfirmed, many.unasked, closed,
           publisher_closed ? "true" : "false");
    printf("\"deliveries_per_second\": %.1f, \"generator_share\": %.4f, ",
           (double)delivered / seconds, (double)many.busy * 1e-9 / seconds);
    print_share("generator_queued", queued / seconds);
    print_share("server_queued", (after.queued - before.server.queued) / seconds);
    if (options.server > 0)
        printf("\"cpu_seconds\": %.6f, \"cpu_system_part\": %.4f, "
               "\"cpu_seconds_per_million\": %.6f, \"server_share\": %.4f, \"rss_mb\": %.1f",
               cpu, (after.system - before.server.system) /
                        (1e-9 + after.system + after.user - before.server.system -
                                       before.server.user),
               cpu * 1e6 / (double)delivered, cpu / seconds, after.rss_mb);
    else
        printf("\"cpu_seconds\": null, \"cpu_system_part\": null, "
               "\"cpu_seconds_per_million\": null, \"server_share\": null, \"rss_mb\": null");
    print_histogram("latency", &many.latency, false);
    print_histogram("confirmation", &many.confirmation, false);
    print_histogram("generator_late", &many.late, false);
    print_histogram("generator_turn", &many.turn, false);
    bool whole = lost == 0 && many.surplus == 0 && many.reordered == 0 && many.altered == 0 &&
                 unconfirmed == 0 && many.unasked == 0 && closed == 0 && !publisher_closed &&
                 many.received == many.sent;
    printf(", \"whole\": %s}\n", whole ? "true" : "false");
    return whole ? 0 : 1;
}
