/*
 * loadgen: one publisher, N subscribers, one server on loopback.
 *
 * It publishes for a bounded time (and, if asked, a bounded number of messages), waits until
 * every subscriber has received everything, and prints one JSON object: deliveries a second, the
 * CPU seconds the server spent per million deliveries, the server's memory, and whatever did
 * not arrive. `loadgen --help` lists the options; fanout.py beside this file is its usual caller.
 *
 * How it counts. Every frame a subscriber receives is parsed, so deliveries and payload bytes are
 * counted exactly, whatever their sizes; nothing is inferred from byte totals or from one
 * calibrating message. `lost` is what was published minus what arrived, subscriber by subscriber,
 * over the whole run. With --verify each payload also carries its sequence number, and every
 * subscriber checks order (within each topic, which is all that MQTT promises) and content.
 *
 * How it keeps out of the way. One thread, epoll, large reads, and the frames to publish are
 * built once into a buffer that is sent round and round. `generator_share` is the CPU it used
 * itself divided by the time it ran: near 1.00 the figures describe the generator, not the server.
 * `generator_queued` and `server_queued` are the shares of the time in which they were ready to run
 * and had no core: what else runs on the machine took it.
 *
 * Exit status: 0 everything arrived as it was sent; 1 the run finished but something was lost,
 * reordered or altered (the JSON says what); 2 no measurement was possible (stderr says why).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum {
    READ_SIZE = 256 * 1024,    /* one recv() at most; small enough to stay in a core's L2 cache */
    CYCLE_BYTES = 512 * 1024,  /* the frames that are published over and over: at least this much */
    TOPICS_MAX = 16384,
    FILTERS_MAX = 64,          /* topics that are subscribed to by name */
    PAYLOAD_MAX = 1024 * 1024,
    HEADER_ROOM = 64 * 1024,   /* a frame beyond its payload: NATS's INFO is the longest, ~1 KiB */
    SUBSCRIBERS_MAX = 10000,
    STAMP_SIZE = 8,            /* the sequence number at the front of a payload, with --verify */
    HANDSHAKE_SECONDS = 10,
    SHOWN_BYTES = 200,         /* of a frame that should not be there */
};
static const double SAMPLE_SECONDS = 0.05; /* how often the server's memory is looked at */
static const double LINGER_SECONDS = 0.05; /* after the last delivery, for what is one too many */

/* ---- Failing ------------------------------------------------------------------------------ */

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("loadgen: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(2);
}

static void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL)
        die("out of memory");
    return memory;
}

/* ---- Options ------------------------------------------------------------------------------ */

typedef struct Protocol Protocol;

static struct {
    const Protocol *protocol;
    int port;
    int subscribers;
    double seconds;        /* of publishing that is measured */
    double warmup;         /* seconds of publishing before that, not measured */
    uint64_t messages;     /* stop after this many (warm-up included); 0: time alone decides */
    uint64_t window;       /* messages published but not yet received by the slowest subscriber */
    size_t payload_min, payload_max;
    int topics;
    bool wildcard;         /* subscribe once with a wildcard, not to each topic by name */
    bool single;           /* each message is one write; otherwise writes of up to `chunk` bytes */
    size_t chunk;
    double drain;          /* give up after this many seconds in which nothing arrived */
    pid_t server;          /* whose CPU and memory to report; 0: nobody's */
    bool verify;
} options = {
    .subscribers = 1, .seconds = 3, .warmup = 0.2, .window = 2000, .payload_min = 200,
    .payload_max = 200, .topics = 1, .chunk = 64 * 1024, .drain = 3,
};

/* ---- Time, and what a process uses ---------------------------------------------------------- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double own_cpu(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

typedef struct {
    double user, system; /* CPU seconds, all threads, living and reaped children included */
    double queued;       /* seconds in which a thread was ready to run and had no core */
    double rss_mb;
} Usage;

static bool read_text(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, text, size - 1);
    close(fd);
    text[got > 0 ? got : 0] = '\0';
    return got > 0;
}

/* Whether this kernel says how long a thread was kept from running (CONFIG_SCHED_INFO). */
static bool knows_queueing;

static double seconds_queued(const char *path)
{
    char text[128];
    unsigned long long queued_ns;
    knows_queueing = read_text(path, text, sizeof text) &&
                     sscanf(text, "%*u %llu", &queued_ns) == 1;
    return knows_queueing ? (double)queued_ns * 1e-9 : 0;
}

/* Add what `pid` and its descendants used. A living child's time is not yet in its parent's
 * cutime, and a reaped one has no entry of its own, so nothing is counted twice. */
static void add_usage(pid_t pid, Usage *total)
{
    char path[320], text[4096];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (!read_text(path, text, sizeof text))
        return;
    /* The command name, in parentheses, may hold anything; the fixed fields follow the last one.
     * Fields 14 to 17 are utime, stime, cutime, cstime; 24 is rss in pages. See proc(5). */
    const char *fields = strrchr(text, ')');
    unsigned long user, system;
    long children_user, children_system, pages;
    if (fields == NULL ||
        sscanf(fields + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %ld %ld"
                           " %*d %*d %*d %*d %*u %*u %ld",
               &user, &system, &children_user, &children_system, &pages) != 5)
        return;
    double ticks = (double)sysconf(_SC_CLK_TCK);
    total->user += ((double)user + (double)children_user) / ticks;
    total->system += ((double)system + (double)children_system) / ticks;
    total->rss_mb += (double)pages * (double)sysconf(_SC_PAGESIZE) / (1024.0 * 1024.0);

    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    if (tasks == NULL)
        return;
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        if (task->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", (int)pid, task->d_name);
        total->queued += seconds_queued(path);
        snprintf(path, sizeof path, "/proc/%d/task/%s/children", (int)pid, task->d_name);
        if (!read_text(path, text, sizeof text))
            continue;
        char *rest = text;
        for (char *word; (word = strsep(&rest, " ")) != NULL;)
            if (*word != '\0')
                add_usage((pid_t)atoi(word), total);
    }
    closedir(tasks);
}

static Usage server_usage(void)
{
    Usage usage = {0, 0, 0, 0};
    if (options.server > 0)
        add_usage(options.server, &usage);
    return usage;
}

/* ---- Topics --------------------------------------------------------------------------------- */

static char topic_names[TOPICS_MAX][16];
static size_t topic_lengths[TOPICS_MAX];

static void name_topics(char separator)
{
    for (int t = 0; t < options.topics; t++)
        topic_lengths[t] =
            (size_t)snprintf(topic_names[t], sizeof topic_names[t], "bench%c%d", separator, t);
}

/* ---- Building packets ------------------------------------------------------------------------ */

typedef struct {
    uint8_t *at;
    size_t length, room;
} Packet;

static void put(Packet *packet, const void *bytes, size_t length)
{
    if (packet->length + length > packet->room) {
        packet->room = 2 * (packet->length + length);
        packet->at = realloc(packet->at, packet->room);
        if (packet->at == NULL)
            die("out of memory");
    }
    memcpy(packet->at + packet->length, bytes, length);
    packet->length += length;
}

static void put_byte(Packet *packet, unsigned value)
{
    uint8_t byte = (uint8_t)value;
    put(packet, &byte, 1);
}

/* Seven bits a byte, the least first: how MQTT and Preserves write lengths. */
static void put_varint(Packet *packet, size_t value)
{
    for (; value > 0x7f; value >>= 7)
        put_byte(packet, (unsigned)(value & 0x7f) | 0x80);
    put_byte(packet, (unsigned)value);
}

__attribute__((format(printf, 2, 3))) static void put_text(Packet *packet, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    put(packet, text, (size_t)length);
}

/* ---- What a protocol is ----------------------------------------------------------------------- */

typedef enum {
    DELIVERY,     /* a message that was published */
    CONFIRMATION, /* what a handshake waits for */
    PING,         /* the server wants an answer, or it will hang up */
    NOISE,        /* known and of no interest */
    REFUSAL,      /* an error, or something that should not be there */
} Kind;

typedef struct {
    Kind kind;
    size_t size; /* the whole frame, on the wire */
    const uint8_t *topic, *payload;
    size_t topic_length, payload_length;
} Frame;

/* What stands at `at`; false when the frame is not all there yet. */
typedef bool Parse(const uint8_t *at, const uint8_t *end, Frame *frame);

typedef struct Connection Connection;

struct Protocol {
    const char *name;
    char separator;
    const char *wildcard;
    const char *pong;
    size_t trailer; /* bytes of a publication after its payload */
    /* Each returns how many CONFIRMATIONs say that the connection is ready. */
    int (*greet_as_subscriber)(Packet *packet, int number);
    int (*greet_as_publisher)(Packet *packet);
    void (*publication)(Packet *packet, int topic, const uint8_t *payload, size_t length);
    size_t (*scan)(Connection *connection, const uint8_t *at, const uint8_t *end);
};

/* ---- Connections and what they receive -------------------------------------------------------- */

struct Connection {
    int fd;
    bool is_publisher, open;
    int awaited;              /* CONFIRMATIONs still to come */
    uint8_t *carry;           /* the beginning of a frame whose rest has not been read */
    size_t carried;
    /* Subscribers only: */
    uint64_t received;        /* deliveries */
    uint64_t received_bytes;  /* of payload */
    uint64_t reordered, altered;
    uint64_t *expected;       /* with --verify: the next sequence number on each topic */
    /* Syndicate only: */
    bool in_turn;                       /* a turn has begun, and its end has not been read */
    uint64_t turn_received, turn_bytes; /* what it has delivered: counted when it ends */
};

static Connection publisher, *subscribers;
static bool pong_owed; /* by the publisher */
static uint8_t *read_buffer; /* `carry_room` bytes for what was carried over, then READ_SIZE */
static size_t carry_room;

static void verify_delivery(Connection *subscriber, const Frame *frame);

static void close_connection(Connection *connection)
{
    if (connection->open)
        close(connection->fd); /* which also takes it out of the epoll set */
    connection->open = false;
}

static void write_all(Connection *connection, const void *bytes, size_t length)
{
    for (const char *at = bytes; length > 0;) {
        ssize_t sent = send(connection->fd, at, length, MSG_NOSIGNAL);
        if (sent < 0)
            die("cannot write to the server: %s", strerror(errno));
        at += sent;
        length -= (size_t)sent;
    }
}

/* Anything but a delivery to a subscriber. */
static void handle_other(Connection *connection, const Frame *frame, const uint8_t *at)
{
    switch (frame->kind) {
    case CONFIRMATION:
        connection->awaited--;
        break;
    case PING:
        if (connection->is_publisher)
            pong_owed = true; /* for later: the publisher may be in the middle of a frame */
        else
            write_all(connection, options.protocol->pong, strlen(options.protocol->pong));
        break;
    case DELIVERY: /* the publisher subscribed to nothing */
    case REFUSAL:
        fprintf(stderr, "loadgen: the server sent the %s an unexpected frame:",
                connection->is_publisher ? "publisher" : "subscriber");
        for (size_t i = 0; i < frame->size && i < SHOWN_BYTES; i++)
            fprintf(stderr, at[i] >= ' ' && at[i] < 127 ? "%c" : "\\x%02x", at[i]);
        fputc('\n', stderr);
        exit(2);
    case NOISE:
        break;
    }
}

/* Take in every whole frame; return how many bytes they were. Inlined into one scanner for each
 * protocol, so that the parser is part of the loop: this is where the generator's time goes. */
static inline __attribute__((always_inline)) size_t scan_frames(
    Connection *connection, const uint8_t *begin, const uint8_t *end, Parse *parse)
{
    const uint8_t *at = begin;
    uint64_t received = 0, received_bytes = 0;
    for (Frame frame; at < end && parse(at, end, &frame); at += frame.size) {
        if (frame.kind != DELIVERY || connection->is_publisher) {
            handle_other(connection, &frame, at);
            continue;
        }
        received++;
        received_bytes += frame.payload_length;
        if (options.verify)
            verify_delivery(connection, &frame);
    }
    connection->received += received;
    connection->received_bytes += received_bytes;
    return (size_t)(at - begin);
}

/* One recv(). False when there was nothing to read or the connection has ended. */
static bool receive(Connection *connection)
{
    uint8_t *fresh = read_buffer + carry_room;
    ssize_t got = recv(connection->fd, fresh, READ_SIZE, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (got <= 0) {
        close_connection(connection);
        return false;
    }
    uint8_t *begin = fresh - connection->carried, *end = fresh + got;
    memcpy(begin, connection->carry, connection->carried);
    begin += options.protocol->scan(connection, begin, end);
    connection->carried = (size_t)(end - begin);
    if (connection->carried > carry_room)
        die("the server sent a frame of more than %zu bytes", carry_room);
    memcpy(connection->carry, begin, connection->carried);
    return true;
}

/* ---- MQTT 3.1.1, QoS 0 -------------------------------------------------------------------------- */

static void put_mqtt_string(Packet *packet, const void *bytes, size_t length)
{
    put_byte(packet, (unsigned)(length >> 8));
    put_byte(packet, (unsigned)(length & 0xff));
    put(packet, bytes, length);
}

static void put_mqtt_header(Packet *packet, unsigned first, size_t remaining)
{
    put_byte(packet, first);
    put_varint(packet, remaining);
}

static void put_mqtt_connect(Packet *packet, const char *client)
{
    put_mqtt_header(packet, 0x10, 10 + 2 + strlen(client));
    put_mqtt_string(packet, "MQTT", 4);
    put(packet, "\x04\x02\x00\x00", 4); /* level 4, clean session, no keep-alive */
    put_mqtt_string(packet, client, strlen(client));
}

static int mqtt_greet_as_subscriber(Packet *packet, int number)
{
    char client[32];
    snprintf(client, sizeof client, "loadgen-sub-%d", number);
    put_mqtt_connect(packet, client);

    Packet filters = {0};
    put(&filters, "\x00\x01", 2); /* packet identifier */
    for (int t = 0; t < (options.wildcard ? 1 : options.topics); t++) {
        const char *filter = options.wildcard ? options.protocol->wildcard : topic_names[t];
        put_mqtt_string(&filters, filter, strlen(filter));
        put_byte(&filters, 0); /* QoS 0 */
    }
    put_mqtt_header(packet, 0x82, filters.length);
    put(packet, filters.at, filters.length);
    free(filters.at);
    return 2; /* CONNACK and SUBACK */
}

static int mqtt_greet_as_publisher(Packet *packet)
{
    put_mqtt_connect(packet, "loadgen-pub");
    return 1; /* CONNACK */
}

static void mqtt_publication(Packet *packet, int topic, const uint8_t *payload, size_t length)
{
    put_mqtt_header(packet, 0x30, 2 + topic_lengths[topic] + length);
    put_mqtt_string(packet, topic_names[topic], topic_lengths[topic]);
    put(packet, payload, length);
}

static inline bool mqtt_parse(const uint8_t *at, const uint8_t *end, Frame *frame)
{
    const uint8_t *body = at + 1;
    size_t remaining = 0;
    for (unsigned shift = 0;; shift += 7) {
        if (body >= end)
            return false;
        remaining |= (size_t)(*body & 0x7f) << shift;
        if ((*body++ & 0x80) == 0)
            break;
        if (shift == 21) { /* a fifth digit [MQTT-2.2.3] */
            frame->kind = REFUSAL;
            frame->size = (size_t)(body - at);
            return true;
        }
    }
    if ((size_t)(end - body) < remaining)
        return false;
    frame->size = (size_t)(body - at) + remaining;
    frame->kind = REFUSAL;
    switch (*at) {
    case 0x30: /* PUBLISH, QoS 0, neither DUP nor RETAIN */
        if (remaining < 2)
            return true;
        frame->topic_length = (size_t)body[0] << 8 | body[1];
        if (2 + frame->topic_length > remaining)
            return true;
        frame->topic = body + 2;
        frame->payload = frame->topic + frame->topic_length;
        frame->payload_length = remaining - 2 - frame->topic_length;
        frame->kind = DELIVERY;
        return true;
    case 0x20: /* CONNACK: session present, return code */
        if (remaining == 2 && body[1] == 0)
            frame->kind = CONFIRMATION;
        return true;
    case 0x90: /* SUBACK: packet identifier, then a QoS for each filter */
        for (size_t i = 2; i < remaining; i++)
            if (body[i] != 0)
                return true;
        frame->kind = CONFIRMATION;
        return true;
    default:
        return true;
    }
}

static size_t mqtt_scan(Connection *connection, const uint8_t *at, const uint8_t *end)
{
    return scan_frames(connection, at, end, mqtt_parse);
}

/* ---- NATS ------------------------------------------------------------------------------------------ */

static int nats_greet_as_publisher(Packet *packet)
{
    put_text(packet, "CONNECT {\"verbose\":false,\"pedantic\":false}\r\nPING\r\n");
    return 1; /* PONG */
}

static int nats_greet_as_subscriber(Packet *packet, int number)
{
    (void)number;
    put_text(packet, "CONNECT {\"verbose\":false,\"pedantic\":false}\r\n");
    for (int t = 0; t < (options.wildcard ? 1 : options.topics); t++)
        put_text(packet, "SUB %s %d\r\n",
                 options.wildcard ? options.protocol->wildcard : topic_names[t], t);
    put_text(packet, "PING\r\n");
    return 1; /* PONG: the server has taken in all that came before it */
}

static void nats_publication(Packet *packet, int topic, const uint8_t *payload, size_t length)
{
    put_text(packet, "PUB %s %zu\r\n", topic_names[topic], length);
    put(packet, payload, length);
    put(packet, "\r\n", 2);
}

static inline bool nats_parse(const uint8_t *at, const uint8_t *end, Frame *frame)
{
    const uint8_t *newline = memchr(at, '\n', (size_t)(end - at));
    if (newline == NULL)
        return false;
    frame->size = (size_t)(newline + 1 - at);
    if (*at != 'M') { /* a line alone */
        bool ping = frame->size == 6 && memcmp(at, "PING\r\n", 6) == 0;
        bool pong = frame->size == 6 && memcmp(at, "PONG\r\n", 6) == 0;
        bool noise = *at == 'I' || *at == '+'; /* INFO {...}, +OK */
        frame->kind = ping ? PING : pong ? CONFIRMATION : noise ? NOISE : REFUSAL;
        return true;
    }
    /* MSG <subject> <sid> <size>\r\n<payload>\r\n */
    frame->kind = REFUSAL;
    if (frame->size < sizeof "MSG s 1 1\r\n" - 1)
        return true;
    const uint8_t *digit = newline - 2;
    size_t length = 0;
    for (size_t scale = 1; *digit >= '0' && *digit <= '9'; digit--, scale *= 10)
        length += scale * (size_t)(*digit - '0');
    if (*digit != ' ' || length > PAYLOAD_MAX)
        return true;
    if ((size_t)(end - newline - 1) < length + 2)
        return false;
    const uint8_t *space = memchr(at + 4, ' ', (size_t)(digit - at - 4));
    if (space == NULL)
        return true;
    frame->topic = at + 4;
    frame->topic_length = (size_t)(space - frame->topic);
    frame->payload = newline + 1;
    frame->payload_length = length;
    frame->size += length + 2;
    frame->kind = DELIVERY;
    return true;
}

static size_t nats_scan(Connection *connection, const uint8_t *at, const uint8_t *end)
{
    return scan_frames(connection, at, end, nats_parse);
}

/* ---- Redis (RESP2) ------------------------------------------------------------------------------------ */

static int redis_greet_as_publisher(Packet *packet)
{
    put_text(packet, "PING\r\n");
    return 1; /* +PONG */
}

static int redis_greet_as_subscriber(Packet *packet, int number)
{
    (void)number;
    int count = options.wildcard ? 1 : options.topics;
    const char *command = options.wildcard ? "PSUBSCRIBE" : "SUBSCRIBE";
    put_text(packet, "*%d\r\n$%zu\r\n%s\r\n", 1 + count, strlen(command), command);
    for (int t = 0; t < count; t++) {
        const char *channel = options.wildcard ? options.protocol->wildcard : topic_names[t];
        put_text(packet, "$%zu\r\n%s\r\n", strlen(channel), channel);
    }
    return count; /* one reply for each channel */
}

static void redis_publication(Packet *packet, int topic, const uint8_t *payload, size_t length)
{
    put_text(packet, "*3\r\n$7\r\nPUBLISH\r\n$%zu\r\n%s\r\n$%zu\r\n", topic_lengths[topic],
             topic_names[topic], length);
    put(packet, payload, length);
    put(packet, "\r\n", 2);
}

/* A decimal number and its \r\n; NULL when they are not all there, or are something else. */
static inline const uint8_t *redis_number(const uint8_t *at, const uint8_t *end, size_t *number)
{
    *number = 0;
    for (; at < end && *at >= '0' && *at <= '9'; at++)
        *number = *number * 10 + (size_t)(*at - '0');
    return end - at >= 2 && *at == '\r' ? at + 2 : NULL;
}

/* A push to a subscriber is an array of bulk strings: message, channel, payload; or pmessage,
 * pattern, channel, payload; or subscribe, channel, and an integer. */
static inline bool redis_parse(const uint8_t *at, const uint8_t *end, Frame *frame)
{
    if (*at != '*') {
        const uint8_t *newline = memchr(at, '\n', (size_t)(end - at));
        if (newline == NULL)
            return false;
        frame->size = (size_t)(newline + 1 - at);
        /* ":9" answers each PUBLISH with the number of subscribers it reached. */
        frame->kind = *at == '+' ? CONFIRMATION : *at == ':' ? NOISE : REFUSAL;
        return true;
    }
    size_t count, length = 0;
    const uint8_t *element = redis_number(at + 1, end, &count);
    if (element == NULL)
        return false;
    const uint8_t *value[4];
    size_t size[4];
    if (count < 3 || count > 4) {
        frame->kind = REFUSAL;
        frame->size = (size_t)(element - at);
        return true;
    }
    for (size_t i = 0; i < count; i++) {
        if (element >= end)
            return false;
        bool bulk = *element == '$';
        value[i] = redis_number(element + 1, end, &length);
        if (value[i] == NULL)
            return false;
        size[i] = bulk ? length : 0;
        if (bulk && (size_t)(end - value[i]) < length + 2)
            return false;
        element = bulk ? value[i] + length + 2 : value[i];
    }
    frame->size = (size_t)(element - at);
    bool named = count == 3 && size[0] == 7 && memcmp(value[0], "message", 7) == 0;
    bool matched = count == 4 && size[0] == 8 && memcmp(value[0], "pmessage", 8) == 0;
    if (!named && !matched) {
        frame->kind = CONFIRMATION;
        return true;
    }
    frame->kind = DELIVERY;
    frame->topic = value[count - 2];
    frame->topic_length = size[count - 2];
    frame->payload = value[count - 1];
    frame->payload_length = size[count - 1];
    return true;
}

static size_t redis_scan(Connection *connection, const uint8_t *at, const uint8_t *end)
{
    return scan_frames(connection, at, end, redis_parse);
}

/* ---- Syndicate (Preserves, binary; oid 0 is the dataspace) ------------------------------------------------ */

/* The tags of Preserves that stand in these packets; integers, strings and the like are a tag, the
 * length as a varint, and the bytes; compounds are a tag, their parts, and END. */
enum {
    FALSE_ = 0x80, TRUE_ = 0x81, END = 0x84, EMBEDDED = 0x86, INTEGER = 0xb0, STRING = 0xb1,
    BYTES = 0xb2, SYMBOL = 0xb3, RECORD = 0xb4, SEQUENCE = 0xb5, DICTIONARY = 0xb7,
};

static void put_value(Packet *packet, unsigned tag, const void *bytes, size_t length)
{
    put_byte(packet, tag);
    put_varint(packet, length);
    put(packet, bytes, length);
}

static void put_small(Packet *packet, unsigned integer) /* 0 is no bytes at all */
{
    uint8_t byte = (uint8_t)integer;
    put_value(packet, INTEGER, &byte, integer > 0);
}

static void put_record(Packet *packet, const char *label)
{
    put_byte(packet, RECORD);
    put_value(packet, SYMBOL, label, strlen(label));
}

static void put_ends(Packet *packet, int count)
{
    while (count-- > 0)
        put_byte(packet, END);
}

/* #:[0 oid], "mine" */
static void put_reference(Packet *packet, unsigned oid)
{
    put_byte(packet, EMBEDDED);
    put_byte(packet, SEQUENCE);
    put_small(packet, 0);
    put_small(packet, oid);
    put_ends(packet, 1);
}

/* [[0 <label ...: a turn with one event for the dataspace, which three ENDs complete. */
static void put_turn(Packet *packet, const char *label)
{
    put_byte(packet, SEQUENCE);
    put_byte(packet, SEQUENCE);
    put_small(packet, 0);
    put_record(packet, label);
}

/* [[0 <S #:[0 1]>]]: answered by [[1 <M #t>]] when all that came before it has been taken in. */
static int syndicate_greet_as_publisher(Packet *packet)
{
    put_turn(packet, "S");
    put_reference(packet, 1);
    put_ends(packet, 3);
    return 1;
}

/* [[0 <A <Observe <bind <group <rec Says> {0: <_> 1: <_>}>> #:[0 0]> 1>]], and a sync. One pattern
 * has all topics: they are told apart by the first field, which may be anything. */
static int syndicate_greet_as_subscriber(Packet *packet, int number)
{
    (void)number;
    put_turn(packet, "A");
    put_record(packet, "Observe");
    put_record(packet, "bind");
    put_record(packet, "group");
    put_record(packet, "rec");
    put_value(packet, SYMBOL, "Says", 4);
    put_ends(packet, 1); /* rec */
    put_byte(packet, DICTIONARY);
    for (unsigned field = 0; field < 2; field++) {
        put_small(packet, field);
        put_record(packet, "_");
        put_ends(packet, 1);
    }
    put_ends(packet, 3); /* the dictionary, group, bind */
    put_reference(packet, 0);
    put_ends(packet, 1); /* Observe */
    put_small(packet, 1); /* the handle */
    put_ends(packet, 3);
    return syndicate_greet_as_publisher(packet);
}

/* [[0 <M <Says "bench.0" #x"...">>]] */
static void syndicate_publication(Packet *packet, int topic, const uint8_t *payload, size_t length)
{
    put_turn(packet, "M");
    put_record(packet, "Says");
    put_value(packet, STRING, topic_names[topic], topic_lengths[topic]);
    put_value(packet, BYTES, payload, length);
    put_ends(packet, 4);
}

/* Where reading has come to. Once something is missing or is not as expected, it stays there. */
typedef struct {
    const uint8_t *at, *end;
    bool missing; /* the rest has not been read yet */
    bool wrong;
} Cursor;

static inline bool stopped(const Cursor *cursor)
{
    return cursor->missing || cursor->wrong;
}

/* These bytes, here. Inlined for the sake of `length`, which is known and small everywhere. */
static inline __attribute__((always_inline)) void expect(
    Cursor *cursor, const char *bytes, size_t length)
{
    if (stopped(cursor))
        return;
    size_t there = (size_t)(cursor->end - cursor->at);
    if (there < length) {
        cursor->missing = memcmp(cursor->at, bytes, there) == 0;
        cursor->wrong = !cursor->missing;
    } else if (memcmp(cursor->at, bytes, length) == 0) {
        cursor->at += length;
    } else {
        cursor->wrong = true;
    }
}
#define EXPECT(cursor, text) expect(cursor, text, sizeof text - 1)

/* The bytes of a value with this tag. */
static inline const uint8_t *expect_value(Cursor *cursor, char tag, size_t *length)
{
    expect(cursor, &tag, 1);
    *length = 0;
    for (unsigned shift = 0; !stopped(cursor); shift += 7) {
        if (cursor->at >= cursor->end) {
            cursor->missing = true;
            return NULL;
        }
        *length |= (size_t)(*cursor->at & 0x7f) << shift;
        if ((*cursor->at++ & 0x80) == 0)
            break;
        if (shift == 28) /* far beyond what fits */
            cursor->wrong = true;
    }
    if (!stopped(cursor) && *length > PAYLOAD_MAX)
        cursor->wrong = true;
    if (!stopped(cursor) && (size_t)(cursor->end - cursor->at) < *length)
        cursor->missing = true;
    if (stopped(cursor))
        return NULL;
    const uint8_t *bytes = cursor->at;
    cursor->at += *length;
    return bytes;
}

/* One event of a turn: [oid <M [<Says who what>]>], what was captured of a message; or
 * [oid <M #t>], the answer to a sync. */
static inline bool syndicate_parse_event(const uint8_t *at, const uint8_t *end, Frame *frame)
{
    Cursor cursor = {.at = at, .end = end};
    size_t oid_length;
    EXPECT(&cursor, "\xb5");
    expect_value(&cursor, (char)INTEGER, &oid_length);
    EXPECT(&cursor, "\xb4\xb3\x01M");
    if (!stopped(&cursor) && cursor.at < end && *cursor.at == TRUE_) {
        EXPECT(&cursor, "\x81\x84\x84");
        frame->kind = CONFIRMATION;
    } else {
        EXPECT(&cursor, "\xb5\xb4\xb3\x04Says");
        frame->topic = expect_value(&cursor, (char)STRING, &frame->topic_length);
        frame->payload = expect_value(&cursor, (char)BYTES, &frame->payload_length);
        EXPECT(&cursor, "\x84\x84\x84\x84");
        frame->kind = DELIVERY;
    }
    frame->size = (size_t)(cursor.at - at);
    if (cursor.wrong) {
        frame->kind = REFUSAL;
        frame->size = (size_t)(end - at); /* as much as there is to show */
    }
    return !cursor.missing;
}

/* As scan_frames, but event by event: a turn may hold any number of them, and be longer than what
 * is kept of it. They count when the turn has ended, for only then would a real peer act. */
static size_t syndicate_scan(Connection *connection, const uint8_t *begin, const uint8_t *end)
{
    const uint8_t *at = begin;
    for (Frame frame; at < end; at += frame.size) {
        frame.kind = NOISE;
        frame.size = 1;
        if (!connection->in_turn) {
            connection->in_turn = *at == SEQUENCE;
            if (*at != SEQUENCE && *at != FALSE_) { /* #f says nothing; <error ...> says no */
                frame.kind = REFUSAL;
                frame.size = (size_t)(end - at);
            }
        } else if (*at == END) {
            connection->in_turn = false;
            connection->received += connection->turn_received;
            connection->received_bytes += connection->turn_bytes;
            connection->turn_received = connection->turn_bytes = 0;
        } else if (!syndicate_parse_event(at, end, &frame)) {
            break;
        }
        if (frame.kind != DELIVERY || connection->is_publisher) {
            handle_other(connection, &frame, at);
            continue;
        }
        connection->turn_received++;
        connection->turn_bytes += frame.payload_length;
        if (options.verify)
            verify_delivery(connection, &frame);
    }
    return (size_t)(at - begin);
}

static const Protocol protocols[] = {
    {"mqtt", '/', "bench/+", "", 0, mqtt_greet_as_subscriber, mqtt_greet_as_publisher,
     mqtt_publication, mqtt_scan},
    {"nats", '.', "bench.*", "PONG\r\n", 2, nats_greet_as_subscriber, nats_greet_as_publisher,
     nats_publication, nats_scan},
    {"redis", '.', "bench.*", "", 2, redis_greet_as_subscriber, redis_greet_as_publisher,
     redis_publication, redis_scan},
    {"syndicate", '.', "", "", 4, syndicate_greet_as_subscriber, syndicate_greet_as_publisher,
     syndicate_publication, syndicate_scan},
};

/* ---- The cycle: what is published, over and over --------------------------------------------------------- */

static struct {
    uint8_t *bytes;
    size_t frames;           /* a multiple of the number of topics: frame i is on topic i % topics */
    size_t *start;           /* frames + 1 of them */
    size_t *payload;         /* where each frame's payload begins */
    size_t *payload_length;
} cycle;

/* xorshift64*, from a fixed seed: every run and every server gets the same sizes and bytes. */
static uint64_t pseudo_random(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15u;
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1du;
}

static void build_cycle(void)
{
    size_t mean = (options.payload_min + options.payload_max) / 2;
    size_t rounds = CYCLE_BYTES / (mean + 1) / (size_t)options.topics + 2;
    cycle.frames = rounds * (size_t)options.topics;
    cycle.start = allocate(cycle.frames + 1, sizeof *cycle.start);
    cycle.payload = allocate(cycle.frames, sizeof *cycle.payload);
    cycle.payload_length = allocate(cycle.frames, sizeof *cycle.payload_length);

    uint8_t *payload = allocate(options.payload_max + 8, 1);
    Packet packet = {0};
    for (size_t i = 0; i < cycle.frames; i++) {
        size_t spread = options.payload_max - options.payload_min + 1;
        size_t length = options.payload_min + pseudo_random() % spread;
        for (size_t k = 0; k < length; k += 8) {
            uint64_t filler = pseudo_random();
            memcpy(payload + k, &filler, 8);
        }
        options.protocol->publication(&packet, (int)(i % (size_t)options.topics), payload, length);
        cycle.start[i + 1] = packet.length;
        cycle.payload[i] = packet.length - options.protocol->trailer - length;
        cycle.payload_length[i] = length;
    }
    free(payload);
    cycle.bytes = packet.at;
}

static void verify_delivery(Connection *subscriber, const Frame *frame)
{
    uint64_t sequence = 0;
    if (frame->payload_length >= STAMP_SIZE)
        memcpy(&sequence, frame->payload, STAMP_SIZE);
    size_t slot = sequence % cycle.frames, topic = slot % (size_t)options.topics;
    size_t length = cycle.payload_length[slot];
    if (frame->payload_length != length || frame->topic_length != topic_lengths[topic] ||
        memcmp(frame->topic, topic_names[topic], frame->topic_length) != 0 ||
        memcmp(frame->payload + STAMP_SIZE, cycle.bytes + cycle.payload[slot] + STAMP_SIZE,
               length - STAMP_SIZE) != 0) {
        subscriber->altered++;
        return;
    }
    /* A gap is a loss, and the counts show it; going back is reordering or a duplicate. */
    if (sequence < subscriber->expected[topic])
        subscriber->reordered++;
    else
        subscriber->expected[topic] = sequence + (uint64_t)options.topics;
}

/* ---- Publishing ------------------------------------------------------------------------------------------- */

static uint64_t published;       /* whole messages handed to the kernel */
static uint64_t published_bytes; /* of payload */
static size_t offset;            /* where in the cycle the next byte stands */
static bool blocked;             /* the kernel takes no more just now */

static bool in_mid_frame(void)
{
    return offset != cycle.start[published % cycle.frames];
}

/* Stamp the sequence number into every frame that begins before `end`. */
static void stamp(size_t end)
{
    size_t slot = published % cycle.frames;
    for (uint64_t sequence = published; slot < cycle.frames && cycle.start[slot] < end; slot++) {
        memcpy(cycle.bytes + cycle.payload[slot], &sequence, STAMP_SIZE);
        sequence++;
    }
}

static void publish_pong(void)
{
    ssize_t length = (ssize_t)strlen(options.protocol->pong);
    ssize_t sent = send(publisher.fd, options.protocol->pong, (size_t)length, MSG_NOSIGNAL);
    blocked = sent < 0 && errno == EAGAIN;
    if (sent != length && !blocked)
        close_connection(&publisher);
    pong_owed = blocked;
}

/* One write of at most `room` messages. */
static void publish_some(uint64_t room)
{
    size_t slot = published % cycle.frames;
    size_t last = room < cycle.frames - slot ? slot + (size_t)room : cycle.frames;
    if (options.single)
        last = slot + 1;
    size_t length = cycle.start[last] - offset;
    if (length > options.chunk && !options.single)
        length = options.chunk;
    if (options.verify)
        stamp(offset + length);
    ssize_t sent = send(publisher.fd, cycle.bytes + offset, length, MSG_NOSIGNAL);
    if (sent < 0) {
        if (errno == EAGAIN)
            blocked = true;
        else
            close_connection(&publisher);
        return;
    }
    blocked = (size_t)sent < length;
    offset += (size_t)sent;
    for (; slot < cycle.frames && cycle.start[slot + 1] <= offset; slot++) {
        published++;
        published_bytes += cycle.payload_length[slot];
    }
    if (slot == cycle.frames)
        offset = 0;
}

/* ---- A phase: publish for a while, then wait for the last delivery ---------------------------------------------- */

static int poller;

static void watch(int operation, Connection *connection, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = connection};
    if (epoll_ctl(poller, operation, connection->fd, &event) < 0)
        die("epoll_ctl: %s", strerror(errno));
}

/* The fewest deliveries any connected subscriber has had. One that hung up holds nobody up. */
static uint64_t slowest(void)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < options.subscribers; i++)
        if (subscribers[i].open && subscribers[i].received < least)
            least = subscribers[i].received;
    return least;
}

typedef struct {
    double began, last_delivery;
    double peak_mb;
} Phase;

static Phase run_phase(double seconds)
{
    Phase phase = {.began = now(), .peak_mb = server_usage().rss_mb};
    phase.last_delivery = phase.began;
    double end = phase.began + seconds, next_sample = phase.began + SAMPLE_SECONDS;
    bool watching_for_room = false;
    struct epoll_event events[256];

    for (;;) {
        double t = now();
        uint64_t least = slowest();
        bool all_gone = least == UINT64_MAX;
        bool finished = t >= end || all_gone || !publisher.open ||
                        (options.messages > 0 && published >= options.messages);
        /* A frame that was begun is completed even when time is up. */
        bool publishing = publisher.open && !all_gone && (!finished || in_mid_frame());
        if (finished && !publishing && (all_gone || least >= published))
            break;
        if (t - phase.last_delivery > options.drain && t - phase.began > options.drain)
            break;
        if (t >= next_sample) {
            double rss_mb = server_usage().rss_mb;
            phase.peak_mb = rss_mb > phase.peak_mb ? rss_mb : phase.peak_mb;
            next_sample = t + SAMPLE_SECONDS;
        }

        if (pong_owed && publisher.open && !blocked && !in_mid_frame())
            publish_pong();
        uint64_t in_flight = published > least ? published - least : 0;
        uint64_t room = options.window > in_flight ? options.window - in_flight : 0;
        if (options.messages > 0 && room > options.messages - published)
            room = options.messages - published;
        if (finished)
            room = 1;
        bool may_publish = publishing && room > 0;
        if (may_publish && !blocked) {
            uint64_t before = published;
            do
                publish_some(room - (published - before));
            while (options.single && !finished && !blocked && publisher.open &&
                   published - before < room);
            may_publish = publisher.open && published - before < room && !finished;
        }

        bool wants_room = publisher.open && publishing && blocked;
        if (publisher.open && wants_room != watching_for_room) {
            watch(EPOLL_CTL_MOD, &publisher, wants_room ? EPOLLIN | EPOLLOUT : EPOLLIN);
            watching_for_room = wants_room;
        }
        int ready = epoll_wait(poller, events, 256, may_publish && !blocked ? 0 : 20);
        bool delivered = false;
        for (int i = 0; i < ready; i++) {
            Connection *connection = events[i].data.ptr;
            if (connection->is_publisher && (events[i].events & EPOLLOUT) != 0)
                blocked = false;
            if ((events[i].events & ~(uint32_t)EPOLLOUT) != 0 && connection->open)
                delivered |= receive(connection) && !connection->is_publisher;
        }
        if (delivered)
            phase.last_delivery = now();
    }
    if (watching_for_room && publisher.open)
        watch(EPOLL_CTL_MOD, &publisher, EPOLLIN);
    return phase;
}

/* Everything has arrived: what still comes now was delivered once too often. */
static void linger(void)
{
    struct epoll_event event;
    for (double end = now() + LINGER_SECONDS; now() < end;)
        if (epoll_wait(poller, &event, 1, 10) > 0)
            receive(event.data.ptr);
}

/* ---- Connecting ----------------------------------------------------------------------------------------------- */

static void open_connection(Connection *connection)
{
    connection->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection->fd < 0)
        die("socket: %s", strerror(errno));
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(connection->fd, (struct sockaddr *)&address, sizeof address) < 0)
        die("cannot connect to 127.0.0.1:%d: %s", options.port, strerror(errno));
    int on = 1;
    setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct timeval patience = {.tv_sec = HANDSHAKE_SECONDS};
    setsockopt(connection->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    connection->open = true;
    connection->carry = allocate(carry_room, 1);
}

/* Say hello, wait until the server has confirmed all of it, and go non-blocking. */
static void greet(Connection *connection, Packet *packet, int confirmations)
{
    connection->awaited = confirmations;
    write_all(connection, packet->at, packet->length);
    free(packet->at);
    while (connection->awaited > 0)
        if (!receive(connection))
            die("the server did not complete the %s handshake (%d replies missing)",
                options.protocol->name, connection->awaited);
    fcntl(connection->fd, F_SETFL, fcntl(connection->fd, F_GETFL) | O_NONBLOCK);
    watch(EPOLL_CTL_ADD, connection, EPOLLIN);
}

static void connect_all(void)
{
    poller = epoll_create1(EPOLL_CLOEXEC);
    carry_room = options.payload_max + HEADER_ROOM;
    read_buffer = allocate(carry_room + READ_SIZE, 1);
    subscribers = allocate((size_t)options.subscribers, sizeof *subscribers);
    for (int i = 0; i < options.subscribers; i++) {
        Packet packet = {0};
        subscribers[i].expected = allocate((size_t)options.topics, sizeof *subscribers[i].expected);
        for (int t = 0; t < options.topics; t++)
            subscribers[i].expected[t] = (uint64_t)t;
        open_connection(&subscribers[i]);
        greet(&subscribers[i], &packet, options.protocol->greet_as_subscriber(&packet, i));
    }
    Packet packet = {0};
    publisher.is_publisher = true;
    open_connection(&publisher);
    greet(&publisher, &packet, options.protocol->greet_as_publisher(&packet));
}

/* ---- The report ----------------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t received, received_bytes, lost, surplus, reordered, altered;
    int closed; /* subscribers whose connection ended */
} Tally;

static Tally tally(void)
{
    Tally sum = {0};
    for (int i = 0; i < options.subscribers; i++) {
        const Connection *subscriber = &subscribers[i];
        sum.received += subscriber->received;
        sum.received_bytes += subscriber->received_bytes;
        if (subscriber->received < published)
            sum.lost += published - subscriber->received;
        else
            sum.surplus += subscriber->received - published;
        sum.reordered += subscriber->reordered;
        sum.altered += subscriber->altered;
        /* Right number, wrong sizes: without --verify it is not known which, only that. */
        if (!options.verify && subscriber->received == published &&
            subscriber->received_bytes != published_bytes)
            sum.altered++;
        sum.closed += !subscriber->open;
    }
    return sum;
}

/* Null where the kernel does not say; a thread that ended takes its time in the queue with it. */
static void print_share(const char *name, double share)
{
    if (knows_queueing)
        printf("\"%s\": %.4f, ", name, share > 0 ? share : 0);
    else
        printf("\"%s\": null, ", name);
}

static int measure(void)
{
    if (options.warmup > 0)
        run_phase(options.warmup);
    Tally tally_before = tally();
    uint64_t published_before = published;
    double own_before = own_cpu(), queued_before = seconds_queued("/proc/self/schedstat");
    Usage before = server_usage();

    Phase phase = run_phase(options.seconds);

    Usage after = server_usage();
    double own = own_cpu() - own_before;
    double queued = seconds_queued("/proc/self/schedstat") - queued_before;
    uint64_t delivered = tally().received - tally_before.received;
    linger();
    Tally total = tally();
    double seconds = phase.last_delivery - phase.began;
    if (seconds <= 0)
        die("nothing was delivered in %g s of publishing", options.seconds);
    double user = after.user - before.user, system = after.system - before.system;
    double peak_mb = after.rss_mb > phase.peak_mb ? after.rss_mb : phase.peak_mb;

    printf("{\"protocol\": \"%s\", \"subscribers\": %d, \"topics\": %d, \"wildcard\": %s, "
           "\"payload_min\": %zu, \"payload_max\": %zu, \"window\": %" PRIu64 ", \"single\": %s, "
           "\"verified\": %s, \"seconds\": %.4f, \"published\": %" PRIu64
           ", \"delivered\": %" PRIu64 ", ",
           options.protocol->name, options.subscribers, options.topics,
           options.wildcard ? "true" : "false", options.payload_min, options.payload_max,
           options.window, options.single ? "true" : "false", options.verify ? "true" : "false",
           seconds, published - published_before, delivered);
    printf("\"total_published\": %" PRIu64 ", \"total_delivered\": %" PRIu64
           ", \"lost\": %" PRIu64 ", \"surplus\": %" PRIu64 ", \"reordered\": %" PRIu64
           ", \"altered\": %" PRIu64 ", \"subscribers_closed\": %d, \"publisher_closed\": %s, ",
           published, total.received, total.lost, total.surplus, total.reordered, total.altered,
           total.closed, publisher.open ? "false" : "true");
    printf("\"deliveries_per_second\": %.1f, \"generator_share\": %.4f, ",
           (double)delivered / seconds, own / seconds);
    print_share("generator_queued", queued / seconds);
    print_share("server_queued", (after.queued - before.queued) / seconds);
    if (options.server > 0)
        printf("\"cpu_seconds\": %.2f, \"cpu_user_seconds\": %.2f, \"cpu_system_seconds\": %.2f, "
               "\"cpu_seconds_per_million\": %.6f, \"server_share\": %.4f, "
               "\"rss_before_mb\": %.1f, \"rss_peak_mb\": %.1f}\n",
               user + system, user, system,
               delivered > 0 ? (user + system) * 1e6 / (double)delivered : 0,
               (user + system) / seconds, before.rss_mb, peak_mb);
    else
        printf("\"cpu_seconds\": null, \"cpu_user_seconds\": null, \"cpu_system_seconds\": null, "
               "\"cpu_seconds_per_million\": null, \"server_share\": null, "
               "\"rss_before_mb\": null, \"rss_peak_mb\": null}\n");
    bool whole = total.lost == 0 && total.surplus == 0 && total.reordered == 0 &&
                 total.altered == 0 && total.closed == 0 && publisher.open;
    return whole ? 0 : 1;
}

/* ---- The command line -------------------------------------------------------------------------------------------- */

static const char usage_text[] =
    "usage: loadgen --protocol mqtt|nats|redis|syndicate --port PORT [options]\n"
    "One publisher and N subscribers on 127.0.0.1; prints one JSON object.\n"
    "  --subscribers N      (1)\n"
    "  --seconds S          publish for this long (3)\n"
    "  --warmup S           publish for this long before measuring (0.2)\n"
    "  --messages M         stop after M messages, warm-up included (no such bound)\n"
    "  --window W           messages in flight to the slowest subscriber (2000)\n"
    "  --payload MIN[:MAX]  bytes of payload; sizes are spread evenly from MIN to MAX (200)\n"
    "  --topics T           messages take T topics in turn; all subscribers hear all (1)\n"
    "  --wildcard           subscribe with one wildcard, not to each topic by name (syndicate:\n"
    "                       one pattern has all topics, with or without)\n"
    "  --single             one write for each message, not writes of many\n"
    "  --chunk BYTES        the largest write otherwise (65536)\n"
    "  --drain S            give up after S seconds in which nothing arrives (3)\n"
    "  --pid PID            the server, whose CPU and memory are reported\n"
    "  --verify             check order and content of every delivery (payload MIN >= 8)\n";

/* A number from `least` to `most`, and nothing after it. */
static double number(const char *option, const char *text, double least, double most)
{
    char *rest;
    errno = 0;
    double value = strtod(text, &rest);
    if (errno != 0 || rest == text || *rest != '\0' || !(value >= least && value <= most))
        die("--%s: %s is not a number from %g to %g", option, text, least, most);
    return value;
}

static void parse_payload(const char *text)
{
    char least[32];
    const char *colon = strchr(text, ':');
    snprintf(least, sizeof least, "%.*s", colon ? (int)(colon - text) : 31, text);
    options.payload_min = (size_t)number("payload", least, 0, PAYLOAD_MAX);
    options.payload_max = options.payload_min;
    if (colon)
        options.payload_max =
            (size_t)number("payload", colon + 1, (double)options.payload_min, PAYLOAD_MAX);
}

static void parse_options(int count, char **words)
{
    enum { PROTOCOL, PORT, SUBSCRIBERS, SECONDS, WARMUP, MESSAGES, WINDOW, PAYLOAD, TOPICS,
           WILDCARD, SINGLE, CHUNK, DRAIN, PID, VERIFY, HELP };
    static const struct option known[] = {
        {"protocol", 1, 0, PROTOCOL}, {"port", 1, 0, PORT}, {"subscribers", 1, 0, SUBSCRIBERS},
        {"seconds", 1, 0, SECONDS}, {"warmup", 1, 0, WARMUP}, {"messages", 1, 0, MESSAGES},
        {"window", 1, 0, WINDOW}, {"payload", 1, 0, PAYLOAD}, {"topics", 1, 0, TOPICS},
        {"wildcard", 0, 0, WILDCARD}, {"single", 0, 0, SINGLE}, {"chunk", 1, 0, CHUNK},
        {"drain", 1, 0, DRAIN}, {"pid", 1, 0, PID}, {"verify", 0, 0, VERIFY},
        {"help", 0, 0, HELP}, {0, 0, 0, 0},
    };
    for (int found, index = 0; (found = getopt_long(count, words, "", known, &index)) != -1;) {
        const char *name = found == '?' ? "" : known[index].name;
        switch (found) {
        case PROTOCOL:
            for (size_t i = 0; i < sizeof protocols / sizeof *protocols; i++)
                if (strcmp(optarg, protocols[i].name) == 0)
                    options.protocol = &protocols[i];
            if (options.protocol == NULL)
                die("--protocol: %s is not mqtt, nats, redis or syndicate", optarg);
            break;
        case PORT: options.port = (int)number(name, optarg, 1, 65535); break;
        case SUBSCRIBERS:
            options.subscribers = (int)number(name, optarg, 1, SUBSCRIBERS_MAX);
            break;
        case SECONDS: options.seconds = number(name, optarg, 0.01, 3600); break;
        case WARMUP: options.warmup = number(name, optarg, 0, 60); break;
        case MESSAGES: options.messages = (uint64_t)number(name, optarg, 1, 1e15); break;
        case WINDOW: options.window = (uint64_t)number(name, optarg, 1, 1e9); break;
        case PAYLOAD: parse_payload(optarg); break;
        case TOPICS: options.topics = (int)number(name, optarg, 1, TOPICS_MAX); break;
        case WILDCARD: options.wildcard = true; break;
        case SINGLE: options.single = true; break;
        case CHUNK: options.chunk = (size_t)number(name, optarg, 1, 1e9); break;
        case DRAIN: options.drain = number(name, optarg, 0.1, 600); break;
        case PID: options.server = (pid_t)number(name, optarg, 1, 1e9); break;
        case VERIFY: options.verify = true; break;
        case HELP: fputs(usage_text, stdout); exit(0);
        default: fputs(usage_text, stderr); exit(2);
        }
    }
    if (options.protocol == NULL || options.port == 0 || optind != count) {
        fputs(usage_text, stderr);
        exit(2);
    }
    if (!options.wildcard && options.topics > FILTERS_MAX)
        die("--topics: more than %d are subscribed to with --wildcard only", FILTERS_MAX);
    if (options.verify && options.payload_min < STAMP_SIZE)
        die("--verify needs payloads of at least %d bytes, for the sequence number", STAMP_SIZE);
    if (options.server > 0 && server_usage().rss_mb == 0)
        die("--pid: there is no process %d", (int)options.server);
}

int main(int count, char **words)
{
    parse_options(count, words);
    name_topics(options.protocol->separator);
    build_cycle();
    connect_all();
    return measure();
}
