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
 * With --rate it is paced instead: every message is due at a time of its own, start + i / rate, and
 * is sent as soon as it is due. None is skipped and the schedule does not move when the server (or
 * this program) is late: what was due meanwhile is sent at once, late. The latency of a delivery
 * counts from when its message was due, so that a server that stops everything for 200 ms shows it
 * in every message that was due in that time, not in one. From shortly before a message is due
 * until all that was sent has come, one thread looks at its sockets again and again and never
 * sleeps, so that the wake-ups of its own core are no part of the figures; what it was late by
 * itself is `generator_late`, how long it did not look at its sockets is `generator_turn`.
 *
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
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
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
    PUBLISHERS_MAX = 1000,     /* paced; otherwise there is one */
    SERIES_MAX = 100000,       /* intervals, with --interval */
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
    double rate;           /* paced: messages a second, of all publishers; 0: by the window */
    int publishers;        /* paced: they take turns */
    double interval;       /* paced: seconds of each line of the series; 0: no series */
    int stalled;           /* paced: so many subscribers stop reading for a while */
    double stall_from, stall_seconds; /* of the measured time */
    int stall_buffer;      /* bytes of their sockets' buffers; 0: the kernel's own */
    bool reconnect;        /* paced: a subscriber that was cut off comes back */
    int pairs, fan_in;     /* many publishers: one of these says how many (loadgen_many.c) */
    bool many;             /* whether one of them was given */
    int qos;               /* many: of publications and subscriptions */
    bool kept;             /* many: subscribers have persistent sessions */
    bool away;             /* many: with persistent sessions, whose clients come back at the end */
    bool leave;            /* many: with --away, whose clients do not come back */
    bool sleep;            /* many: sleep whenever there is nothing to do */
} options = {
    .publishers = 1, .stall_from = 1, .stall_seconds = 1, .subscribers = 1, .seconds = 3, .warmup = 0.2, .window = 2000, .payload_min = 200,
    .payload_max = 200, .topics = 1, .chunk = 64 * 1024, .drain = 3,
};

/* ---- Time, and what a process uses ---------------------------------------------------------- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
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
    double exact;        /* the same together, not in ticks of 10 ms but as the scheduler has it */
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
    clockid_t clock;
    struct timespec used;
    if (clock_getcpuclockid(pid, &clock) == 0 && clock_gettime(clock, &used) == 0)
        total->exact += (double)used.tv_sec + (double)used.tv_nsec * 1e-9;
    total->exact += ((double)children_user + (double)children_system) / ticks;
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
    Usage usage = {0};
    if (options.server > 0)
        add_usage(options.server, &usage);
    return usage;
}

/* ---- Histograms ------------------------------------------------------------------------------ */

/* Nanoseconds in buckets whose width grows with the value, as HdrHistogram's do: those below
 * 2^bits have one each, and each doubling beyond has 2^(bits - 1). With 11 bits a bucket is less
 * than a thousandth of its value: three significant digits. */
typedef struct {
    unsigned bits;
    uint64_t count;
    uint64_t most;
    double sum;
    uint32_t *buckets; /* none yet when nothing was recorded */
} Histogram;

enum { FINE = 11, COARSE = 7, LARGEST = 40 /* 2^40 ns are eighteen minutes */ };

static inline size_t bucket_of(const Histogram *histogram, uint64_t value)
{
    unsigned bits = histogram->bits;
    if (value < (uint64_t)1 << bits)
        return (size_t)value;
    unsigned shift = 64 - (unsigned)__builtin_clzll(value) - bits;
    return ((size_t)shift << (bits - 1)) + (size_t)(value >> shift);
}

/* The largest value of a bucket. */
static uint64_t bucket_end(const Histogram *histogram, size_t bucket)
{
    unsigned bits = histogram->bits;
    size_t shift = bucket >> (bits - 1);
    shift = shift > 0 ? shift - 1 : 0;
    return (((uint64_t)(bucket - (shift << (bits - 1))) + 1) << shift) - 1;
}

static size_t bucket_count(const Histogram *histogram)
{
    return bucket_of(histogram, ((uint64_t)1 << LARGEST) - 1) + 1;
}

static void record(Histogram *histogram, int64_t nanoseconds)
{
    uint64_t value = nanoseconds > 0 ? (uint64_t)nanoseconds : 0;
    if (value >= (uint64_t)1 << LARGEST)
        value = ((uint64_t)1 << LARGEST) - 1;
    if (histogram->buckets == NULL)
        histogram->buckets = allocate(bucket_count(histogram), sizeof *histogram->buckets);
    histogram->buckets[bucket_of(histogram, value)]++;
    histogram->count++;
    histogram->sum += (double)value;
    if (value > histogram->most)
        histogram->most = value;
}

/* The least value that so great a part of all values does not exceed, in seconds. */
static double quantile(const Histogram *histogram, double part)
{
    double wanted = part * (double)histogram->count;
    uint64_t seen = 0;
    for (size_t i = 0; histogram->count > 0 && i < bucket_count(histogram); i++) {
        seen += histogram->buckets[i];
        if (seen > 0 && (double)seen >= wanted) {
            uint64_t end = bucket_end(histogram, i);
            return (double)(end < histogram->most ? end : histogram->most) * 1e-9;
        }
    }
    return (double)histogram->most * 1e-9;
}

/* ---- Topics --------------------------------------------------------------------------------- */

/* Topic t of a subscriber: with pairs each has one, which is its own. */
static int filter_count(void)
{
    return options.wildcard || options.pairs > 0 ? 1 : options.topics;
}

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
    ACKNOWLEDGEMENT, /* of a message that was published with QoS 1 */
    REFUSAL,      /* an error, or something that should not be there */
} Kind;

typedef struct {
    Kind kind;
    size_t size; /* the whole frame, on the wire */
    const uint8_t *topic, *payload;
    size_t topic_length, payload_length;
    unsigned identifier; /* with QoS 1 */
    bool again;          /* DUP */
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
    bool pong_owed;           /* by a publisher */
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
    uint64_t *turn_sequences;           /* paced: of each of them */
    size_t turn_room;
};

/* The filter that stands at place `t` of subscriber `number`. */
static const char *filter_name(int number, int t)
{
    if (options.wildcard)
        return options.protocol->wildcard;
    return topic_names[options.pairs > 0 ? number : t];
}

static Connection publisher, *subscribers;
static uint8_t *read_buffer; /* `carry_room` bytes for what was carried over, then READ_SIZE */
static size_t carry_room;

static void verify_delivery(Connection *subscriber, const Frame *frame);
static uint64_t sequence_of(const Frame *frame);
static void time_delivery(Connection *subscriber, uint64_t sequence);
static int64_t arrived; /* paced: when what is being scanned was read */
static void many_delivery(Connection *subscriber, const Frame *frame);
static void many_acknowledged(Connection *publisher, unsigned identifier);

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
            connection->pong_owed = true; /* for later: the publisher may be in the middle of a frame */
        else
            write_all(connection, options.protocol->pong, strlen(options.protocol->pong));
        break;
    case ACKNOWLEDGEMENT:
        if (connection->is_publisher) {
            many_acknowledged(connection, frame->identifier);
            break;
        }
        /* fall through */
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
        if (options.many)
            many_delivery(connection, &frame);
        else if (options.rate > 0)
            time_delivery(connection, sequence_of(&frame));
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
    if (options.rate > 0 || options.many)
        arrived = now_ns();
    uint8_t *begin = fresh - connection->carried, *end = fresh + got;
    memcpy(begin, connection->carry, connection->carried);
    begin += options.protocol->scan(connection, begin, end);
    connection->carried = (size_t)(end - begin);
    if (connection->carried > carry_room)
        die("the server sent a frame of more than %zu bytes", carry_room);
    memcpy(connection->carry, begin, connection->carried);
    return true;
}

/* ---- MQTT 3.1.1, QoS 0 and, with many publishers, 1 -------------------------------------------------------------------------- */

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

static void put_mqtt_connect(Packet *packet, const char *client, bool clean)
{
    put_mqtt_header(packet, 0x10, 10 + 2 + strlen(client));
    put_mqtt_string(packet, "MQTT", 4);
    /* Level 4; a keep-alive of 18 hours, since there are servers that want one. */
    put(packet, clean ? "\x04\x02\xff\xff" : "\x04\x00\xff\xff", 4);
    put_mqtt_string(packet, client, strlen(client));
}

static int mqtt_greet_as_subscriber(Packet *packet, int number)
{
    char client[32];
    snprintf(client, sizeof client, "loadgen-sub-%d", number);
    put_mqtt_connect(packet, client, !options.kept);

    Packet filters = {0};
    put(&filters, "\x00\x01", 2); /* packet identifier */
    for (int t = 0; t < filter_count(); t++) {
        const char *filter = filter_name(number, t);
        put_mqtt_string(&filters, filter, strlen(filter));
        put_byte(&filters, (unsigned)options.qos);
    }
    put_mqtt_header(packet, 0x82, filters.length);
    put(packet, filters.at, filters.length);
    free(filters.at);
    return 2; /* CONNACK and SUBACK */
}

static int mqtt_greet_as_publisher(Packet *packet)
{
    static int number;
    char client[32];
    snprintf(client, sizeof client, "loadgen-pub-%d", number++);
    put_mqtt_connect(packet, client, true);
    return 1; /* CONNACK */
}

static void mqtt_publication(Packet *packet, int topic, const uint8_t *payload, size_t length)
{
    bool confirmed = options.qos > 0;
    put_mqtt_header(packet, confirmed ? 0x32 : 0x30,
                    2 + topic_lengths[topic] + (confirmed ? 2 : 0) + length);
    put_mqtt_string(packet, topic_names[topic], topic_lengths[topic]);
    if (confirmed)
        put(packet, "\x00\x01", 2); /* the packet identifier: another one for each message */
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
    case 0x32: /* PUBLISH, QoS 1 */
    case 0x3a: /* the same, again */
        if (options.qos == 0 || remaining < 4)
            return true;
        frame->topic_length = (size_t)body[0] << 8 | body[1];
        if (4 + frame->topic_length > remaining)
            return true;
        frame->topic = body + 2;
        frame->payload = frame->topic + frame->topic_length + 2;
        frame->payload_length = remaining - 4 - frame->topic_length;
        frame->identifier = (unsigned)frame->payload[-2] << 8 | frame->payload[-1];
        frame->again = *at == 0x3a;
        frame->kind = DELIVERY;
        return true;
    case 0x40: /* PUBACK */
        if (options.qos == 0 || remaining != 2)
            return true;
        frame->identifier = (unsigned)body[0] << 8 | body[1];
        frame->kind = ACKNOWLEDGEMENT;
        return true;
    case 0x20: /* CONNACK: session present, return code */
        if (remaining == 2 && body[1] == 0)
            frame->kind = CONFIRMATION;
        return true;
    case 0x90: /* SUBACK: packet identifier, then a QoS for each filter */
        for (size_t i = 2; i < remaining; i++)
            if (body[i] != options.qos)
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
    put_text(packet, "CONNECT {\"verbose\":false,\"pedantic\":false}\r\n");
    for (int t = 0; t < filter_count(); t++)
        put_text(packet, "SUB %s %d\r\n", filter_name(number, t), t);
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
    int count = filter_count();
    const char *command = options.wildcard ? "PSUBSCRIBE" : "SUBSCRIBE";
    put_text(packet, "*%d\r\n$%zu\r\n%s\r\n", 1 + count, strlen(command), command);
    for (int t = 0; t < count; t++) {
        const char *channel = filter_name(number, t);
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

static void keep_sequence(Connection *connection, uint64_t sequence)
{
    if (connection->turn_received == connection->turn_room) {
        connection->turn_room = 2 * connection->turn_room + 16;
        connection->turn_sequences = realloc(
            connection->turn_sequences, connection->turn_room * sizeof *connection->turn_sequences);
        if (connection->turn_sequences == NULL)
            die("out of memory");
    }
    connection->turn_sequences[connection->turn_received] = sequence;
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
            for (size_t i = 0; options.rate > 0 && i < connection->turn_received; i++)
                time_delivery(connection, connection->turn_sequences[i]);
            connection->turn_received = connection->turn_bytes = 0;
        } else if (!syndicate_parse_event(at, end, &frame)) {
            break;
        }
        if (frame.kind != DELIVERY || connection->is_publisher) {
            handle_other(connection, &frame, at);
            continue;
        }
        if (options.rate > 0)
            keep_sequence(connection, sequence_of(&frame));
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

static uint64_t sequence_of(const Frame *frame)
{
    uint64_t sequence = 0;
    if (frame->payload_length >= STAMP_SIZE)
        memcpy(&sequence, frame->payload, STAMP_SIZE);
    return sequence;
}

static void verify_delivery(Connection *subscriber, const Frame *frame)
{
    uint64_t sequence = sequence_of(frame);
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
    publisher.pong_owed = blocked;
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

        if (publisher.pong_owed && publisher.open && !blocked && !in_mid_frame())
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

/* The first of the subscribers are those that stop reading for a while. */
static bool stalls(const Connection *connection)
{
    return !connection->is_publisher && connection - subscribers < options.stalled;
}

/* ---- Connecting ----------------------------------------------------------------------------------------------- */

static void open_connection(Connection *connection)
{
    connection->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection->fd < 0)
        die("socket: %s", strerror(errno));
    if (stalls(connection) && options.stall_buffer > 0) /* before the window is agreed on */
        setsockopt(connection->fd, SOL_SOCKET, SO_RCVBUF, &options.stall_buffer,
                   sizeof options.stall_buffer);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(connection->fd, (struct sockaddr *)&address, sizeof address) < 0)
        die("cannot connect to 127.0.0.1:%d: %s", options.port, strerror(errno));
    int on = 1;
    setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct timeval patience = {.tv_sec = HANDSHAKE_SECONDS};
    setsockopt(connection->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    connection->open = true;
    if (connection->carry == NULL) /* it may come back */
        connection->carry = allocate(carry_room, 1);
    connection->carried = 0;
    connection->in_turn = false;
    connection->turn_received = connection->turn_bytes = 0;
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

/* Somebody who publishes at a pace. */
typedef struct {
    Connection *connection;
    uint64_t next;         /* the number of the message it sends next */
    uint8_t *staged;       /* whole frames that are due, of which `sent` bytes have gone */
    size_t length, sent;
    uint64_t staged_count;
    bool blocked;          /* the kernel takes no more from it */
    int64_t since, freed;  /* when it was blocked last, and when that ended */
} Pacer;

static Pacer *pacers;

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
    pacers = allocate((size_t)options.publishers, sizeof *pacers);
    for (int i = 0; i < options.publishers; i++) {
        Packet packet = {0};
        Connection *connection = i == 0 ? &publisher : allocate(1, sizeof *connection);
        pacers[i].connection = connection;
        connection->is_publisher = true;
        open_connection(connection);
        greet(connection, &packet, options.protocol->greet_as_publisher(&packet));
    }
}

/* ---- Counting -------------------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t received, received_bytes, lost, surplus, reordered, altered;
    int closed; /* subscribers whose connection ended */
    bool publisher_closed;
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
    for (int i = 0; i < options.publishers; i++)
        sum.publisher_closed |= !pacers[i].connection->open;
    return sum;
}

/* What there was before the part that is measured. */
typedef struct {
    Tally tally;
    uint64_t published;
    double own, queued;
    Usage server;
} Before;

static Before look(void)
{
    return (Before){
        .tally = tally(),
        .published = published,
        .own = own_cpu(),
        .queued = seconds_queued("/proc/self/schedstat"),
        .server = server_usage(),
    };
}

/* ---- Paced: every message has its time ------------------------------------------------------------------------ */

enum {
    AWAKE_NS = 200000,     /* so long before a message is due nobody sleeps any more */
    LEAST_DOZE_NS = 50000,
};
enum { STAGE_BYTES = 64 * 1024 }; /* one send() of a paced publisher at most, or one frame */
static const double LEAD_SECONDS = 0.01; /* from connecting to when the first message is due */

enum { OTHERS, STALLED, CLASSES }; /* subscribers that always read, and those that stop for a while */

static struct {
    int64_t start;    /* ns: when message 0 is due */
    double period;    /* ns between two messages */
    uint64_t total;   /* messages in the schedule */
    uint64_t first;   /* the first that is measured: those before it are warm-up */
    Histogram latency[CLASSES];
    Histogram late;   /* sent after it was due, nobody's fault but this program's */
    Histogram behind; /* sent after it was due, whoever's fault it was */
    Histogram turn;   /* from one look at all sockets to the next */
    int64_t busy;     /* ns in turns in which there was something to do */
    int64_t waited, waited_most; /* ns in which the kernel took nothing from a publisher: sum, longest */
    uint64_t foreign; /* deliveries whose number was never published */
    int reconnected;
} paced;

/* What became of the messages that were due in an interval; and what arrived and happened in it. */
typedef struct {
    uint64_t due, arrived[CLASSES];
    Histogram latency[CLASSES];
    int64_t behind;     /* the most by which a message that was due in it was sent late, in ns */
    double rss_mb;      /* at its end */
} Interval;

static Interval *series;
static size_t series_length;

static int64_t due_at(uint64_t sequence)
{
    return paced.start + (int64_t)((double)sequence * paced.period);
}

/* The interval of the measured time in which `t` is; NULL when there is none. */
static Interval *interval_at(int64_t t)
{
    int64_t since = t - due_at(paced.first);
    if (series == NULL || since < 0)
        return NULL;
    size_t index = (size_t)((double)since * 1e-9 / options.interval);
    return index < series_length ? &series[index] : NULL;
}

static void time_delivery(Connection *subscriber, uint64_t sequence)
{
    if (sequence >= paced.total) {
        paced.foreign++;
        return;
    }
    int class = stalls(subscriber) ? STALLED : OTHERS;
    Interval *now_in = interval_at(arrived);
    if (now_in != NULL)
        now_in->arrived[class]++;
    if (sequence < paced.first)
        return;
    int64_t due = due_at(sequence), latency = arrived - due;
    record(&paced.latency[class], latency);
    Interval *due_in = interval_at(due);
    if (due_in != NULL)
        record(&due_in->latency[class], latency);
}

/* Put the frames that are due at `t` behind each other, numbered; say by how much each is late. */
static void stage(Pacer *pacer, int64_t t)
{
    pacer->length = pacer->sent = 0;
    pacer->staged_count = 0;
    if (pacer->connection->pong_owed) {
        pacer->length = strlen(options.protocol->pong);
        memcpy(pacer->staged, options.protocol->pong, pacer->length);
        pacer->connection->pong_owed = false;
    }
    while (pacer->next < paced.total && !(options.single && pacer->staged_count > 0)) {
        uint64_t sequence = pacer->next;
        int64_t due = due_at(sequence);
        size_t slot = sequence % cycle.frames;
        size_t length = cycle.start[slot + 1] - cycle.start[slot];
        if (due > t || (pacer->length > 0 && pacer->length + length > STAGE_BYTES))
            break;
        memcpy(pacer->staged + pacer->length, cycle.bytes + cycle.start[slot], length);
        memcpy(pacer->staged + pacer->length + (cycle.payload[slot] - cycle.start[slot]), &sequence,
               STAMP_SIZE);
        pacer->length += length;
        pacer->staged_count++;
        pacer->next += (uint64_t)options.publishers;
        published++;
        published_bytes += cycle.payload_length[slot];
        if (sequence < paced.first)
            continue;
        record(&paced.late, t - (due > pacer->freed ? due : pacer->freed));
        record(&paced.behind, t - due);
        Interval *due_in = interval_at(due);
        if (due_in != NULL && t - due > due_in->behind)
            due_in->behind = t - due;
    }
}

static void end_wait(Pacer *pacer, int64_t t)
{
    pacer->blocked = false;
    pacer->freed = t;
    int64_t waited = t - pacer->since;
    paced.waited += waited;
    if (waited > paced.waited_most)
        paced.waited_most = waited;
}

/* Send all that is due at `t`, until the kernel takes no more; say whether there was any. */
static bool pace(Pacer *pacer, int64_t t)
{
    Connection *connection = pacer->connection;
    bool something = false;
    while (connection->open && !pacer->blocked) {
        if (pacer->sent == pacer->length)
            stage(pacer, t);
        if (pacer->length == 0)
            break;
        something = true;
        ssize_t sent = send(connection->fd, pacer->staged + pacer->sent,
                            pacer->length - pacer->sent, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            close_connection(connection);
        else if (sent > 0)
            pacer->sent += (size_t)sent;
        if (connection->open && pacer->sent < pacer->length) {
            pacer->blocked = true;
            pacer->since = t;
            watch(EPOLL_CTL_MOD, connection, EPOLLIN | EPOLLOUT);
        }
    }
    return something;
}

/* What was staged and has not gone was not published. */
static void take_back(const Pacer *pacer)
{
    uint64_t sequence = pacer->next - pacer->staged_count * (uint64_t)options.publishers;
    size_t gone = 0;
    for (; pacer->sent < pacer->length && sequence < pacer->next;
         sequence += (uint64_t)options.publishers) {
        size_t slot = sequence % cycle.frames;
        gone += cycle.start[slot + 1] - cycle.start[slot];
        if (gone > pacer->sent) {
            published--;
            published_bytes -= cycle.payload_length[slot];
        }
    }
}

/* Come back after having been cut off. The schedule does not wait for it: what is due meanwhile is
 * sent late, and `generator_late` says so. */
static void reconnect(Connection *subscriber)
{
    Packet packet = {0};
    paced.reconnected++;
    open_connection(subscriber);
    int number = (int)(subscriber - subscribers);
    greet(subscriber, &packet, options.protocol->greet_as_subscriber(&packet, number));
}

static bool all_have_come(void)
{
    for (int i = 0; i < options.publishers; i++)
        if (pacers[i].connection->open &&
            (pacers[i].next < paced.total || pacers[i].sent < pacers[i].length))
            return false;
    uint64_t least = slowest();
    return least == UINT64_MAX || least >= published;
}

static void begin_schedule(void)
{
    paced.period = 1e9 / options.rate;
    paced.first = (uint64_t)(options.warmup * options.rate);
    paced.total = paced.first + (uint64_t)(options.seconds * options.rate);
    if (options.messages > 0 && options.messages < paced.total)
        paced.total = options.messages;
    if (paced.total <= paced.first)
        die("--rate: no message is due in %g s", options.seconds);
    for (int i = 0; i < CLASSES; i++)
        paced.latency[i].bits = FINE;
    paced.late.bits = paced.behind.bits = paced.turn.bits = FINE;
    if (options.interval > 0) {
        series_length = (size_t)(options.seconds / options.interval + 0.5);
        if (series_length > SERIES_MAX)
            die("--interval: more than %d of them", SERIES_MAX);
        series = allocate(series_length, sizeof *series);
        for (size_t i = 0; i < series_length; i++)
            series[i].latency[OTHERS].bits = series[i].latency[STALLED].bits = COARSE;
    }
    size_t room = STAGE_BYTES + options.payload_max + HEADER_ROOM;
    for (int i = 0; i < options.publishers; i++) {
        pacers[i].staged = allocate(room, 1);
        pacers[i].next = (uint64_t)i;
    }
    paced.start = now_ns() + (int64_t)(LEAD_SECONDS * 1e9);
    for (uint64_t i = paced.first; series != NULL && i < paced.total; i++) {
        Interval *interval = interval_at(due_at(i));
        if (interval != NULL)
            interval->due++;
    }
}

/* Stop reading from those that stall, or go on. */
static void set_reading(bool reading)
{
    for (int i = 0; i < options.stalled; i++)
        if (subscribers[i].open)
            watch(reading ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, &subscribers[i], EPOLLIN);
}

/* Every message that was sent has come, so that until the next one is due nothing is to be seen. */
static bool nothing_is_under_way(void)
{
    for (int i = 0; i < options.publishers; i++)
        if (pacers[i].connection->open && pacers[i].sent < pacers[i].length)
            return false;
    return slowest() >= published && !all_have_come();
}

static int64_t next_due(void)
{
    uint64_t least = paced.total;
    for (int i = 0; i < options.publishers; i++)
        if (pacers[i].connection->open && pacers[i].next < least)
            least = pacers[i].next;
    return due_at(least);
}

/* Sleep, unless the time is too short for it, or until a socket has something. */
static void doze(int64_t nanoseconds)
{
    if (nanoseconds < LEAST_DOZE_NS)
        return;
    struct pollfd sockets = {.fd = poller, .events = POLLIN};
    struct timespec time = {nanoseconds / 1000000000, nanoseconds % 1000000000};
    ppoll(&sockets, 1, &time, NULL);
}

static Before run_paced(Phase *phase)
{
    Before before = {0};
    prctl(PR_SET_TIMERSLACK, 1000UL); /* ns: by how much a sleep may be longer than asked */
    begin_schedule();
    int64_t measured = due_at(paced.first), end = due_at(paced.total);
    int64_t stall = measured + (int64_t)(options.stall_from * 1e9);
    int64_t back = stall + (int64_t)(options.stall_seconds * 1e9);
    int64_t patience = (int64_t)(options.drain * 1e9);
    bool started = false, reading = true, was_away = options.stalled == 0;
    size_t sampled = 0;
    struct epoll_event events[256];
    int64_t looked = now_ns(), last = looked;

    *phase = (Phase){.peak_mb = server_usage().rss_mb};
    for (;;) {
        int64_t t = now_ns();
        bool something = false;
        if (started) {
            record(&paced.turn, t - looked);
        } else if (t >= measured) {
            /* Reading the server's figures takes a moment: a turn that does not count. */
            before = look();
            started = true;
            t = now_ns();
        }
        looked = t;
        for (int i = 0; i < options.publishers; i++)
            something |= pace(&pacers[i], t);
        if (!was_away && reading && t >= stall) {
            set_reading(false);
            reading = false;
        }
        if (!reading && t >= back) {
            set_reading(true);
            reading = was_away = true;
        }
        if (sampled < series_length &&
            t >= measured + (int64_t)((double)(sampled + 1) * options.interval * 1e9)) {
            double rss_mb = server_usage().rss_mb;
            phase->peak_mb = rss_mb > phase->peak_mb ? rss_mb : phase->peak_mb;
            series[sampled++].rss_mb = rss_mb;
        }
        if (t >= end && reading &&
            (all_have_come() || (t - last > patience && t - end > patience)))
            break;

        int ready = epoll_wait(poller, events, 256, 0);
        if (ready == 0 && !something && reading && nothing_is_under_way()) {
            doze(next_due() - AWAKE_NS - t);
            looked = now_ns();
        }
        for (int i = 0; i < ready; i++) {
            Connection *connection = events[i].data.ptr;
            something = true;
            if (connection->is_publisher && (events[i].events & EPOLLOUT) != 0)
                for (int k = 0; k < options.publishers; k++)
                    if (pacers[k].connection == connection && pacers[k].blocked) {
                        end_wait(&pacers[k], now_ns());
                        watch(EPOLL_CTL_MOD, connection, EPOLLIN);
                    }
            if ((events[i].events & ~(uint32_t)EPOLLOUT) == 0 || !connection->open)
                continue;
            if (receive(connection) && !connection->is_publisher)
                last = arrived;
            if (!connection->open && !connection->is_publisher && options.reconnect)
                reconnect(connection);
        }
        if (something && started)
            paced.busy += now_ns() - t;
    }
    int64_t t = now_ns();
    for (int i = 0; i < options.publishers; i++) {
        if (pacers[i].blocked)
            end_wait(&pacers[i], t);
        take_back(&pacers[i]);
    }
    phase->began = (double)measured * 1e-9;
    phase->last_delivery = (double)last * 1e-9;
    return before;
}

/* ---- The report ----------------------------------------------------------------------------------------------- */

/* Null where the kernel does not say; a thread that ended takes its time in the queue with it. */
static void print_share(const char *name, double share)
{
    if (knows_queueing)
        printf("\"%s\": %.4f, ", name, share > 0 ? share : 0);
    else
        printf("\"%s\": null, ", name);
}

static const double ladder[] = {0.5, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999};

/* Seconds: "name": {"count": ..., "mean": ..., "p50": ..., ..., "max": ..., "curve": [[part, s], ...]} */
static void print_histogram(const char *name, const Histogram *histogram, bool curve)
{
    static const char *const names[] = {"p50", "p90", "p95", "p99", "p99.5", "p99.9", "p99.95",
                                        "p99.99"};
    if (histogram->count == 0) {
        printf(", \"%s\": null", name);
        return;
    }
    printf(", \"%s\": {\"count\": %" PRIu64 ", \"mean\": %.9f", name, histogram->count,
           histogram->sum / (double)histogram->count * 1e-9);
    for (size_t i = 0; i < sizeof ladder / sizeof *ladder; i++)
        printf(", \"%s\": %.9f", names[i], quantile(histogram, ladder[i]));
    printf(", \"max\": %.9f", (double)histogram->most * 1e-9);
    if (curve) {
        /* Five steps for each halving of what is left above, as far as there are values. */
        printf(", \"curve\": [");
        double left = 1;
        for (; left * (double)histogram->count >= 1; left /= 2)
            for (int step = 0; step < 5; step++) {
                double part = 1 - left * (1 - step / 10.0);
                printf("[%.9g, %.9f], ", part, quantile(histogram, part));
            }
        printf("[1, %.9f]]", (double)histogram->most * 1e-9);
    }
    printf("}");
}

static void print_series(void)
{
    static const char *const names[CLASSES] = {"others", "stalled"};
    printf(", \"series\": [");
    for (size_t i = 0; i < series_length; i++) {
        const Interval *interval = &series[i];
        printf("%s{\"at\": %.6g, \"due\": %" PRIu64 ", \"behind\": %.9f, \"rss_mb\": %.1f",
               i > 0 ? ", " : "", (double)i * options.interval, interval->due,
               (double)interval->behind * 1e-9, interval->rss_mb);
        for (int class = 0; class < CLASSES; class++) {
            const Histogram *latency = &interval->latency[class];
            printf(", \"%s\": {\"arrived\": %" PRIu64 ", \"came\": %" PRIu64 ", ", names[class],
                   interval->arrived[class], latency->count);
            if (latency->count > 0)
                printf("\"p50\": %.9f, \"p99\": %.9f, \"max\": %.9f}", quantile(latency, 0.5),
                       quantile(latency, 0.99), (double)latency->most * 1e-9);
            else
                printf("\"p50\": null, \"p99\": null, \"max\": null}");
        }
        printf("}");
    }
    printf("]");
}

static void print_paced(double seconds)
{
    printf(", \"rate\": %.6g, \"publishers\": %d, \"due\": %" PRIu64 ", \"unsent\": %" PRIu64
           ", \"foreign\": %" PRIu64 ", \"reconnected\": %d"
           ", \"publishers_waited\": %.6f, \"publishers_waited_most\": %.6f",
           options.rate, options.publishers, paced.total - paced.first, paced.total - published,
           paced.foreign, paced.reconnected,
           (double)paced.waited * 1e-9 / seconds / options.publishers,
           (double)paced.waited_most * 1e-9);
    print_histogram("latency", &paced.latency[OTHERS], true);
    print_histogram("latency_stalled", &paced.latency[STALLED], true);
    print_histogram("generator_late", &paced.late, false);
    print_histogram("generator_turn", &paced.turn, false);
    print_histogram("behind", &paced.behind, false);
    if (series != NULL)
        print_series();
}

static int measure(void)
{
    Before before;
    Phase phase;
    if (options.rate > 0) {
        before = run_paced(&phase);
    } else {
        if (options.warmup > 0)
            run_phase(options.warmup);
        before = look();
        phase = run_phase(options.seconds);
    }

    Usage after = server_usage();
    double own = own_cpu() - before.own;
    double queued = seconds_queued("/proc/self/schedstat") - before.queued;
    uint64_t delivered = tally().received - before.tally.received;
    linger();
    Tally total = tally();
    double seconds = phase.last_delivery - phase.began;
    if (seconds <= 0)
        die("nothing was delivered in %g s of publishing", options.seconds);
    if (options.rate > 0)
        own = (double)paced.busy * 1e-9; /* it never sleeps: what it had to do is what counts */
    double user = after.user - before.server.user, system = after.system - before.server.system;
    double peak_mb = after.rss_mb > phase.peak_mb ? after.rss_mb : phase.peak_mb;

    printf("{\"protocol\": \"%s\", \"subscribers\": %d, \"topics\": %d, \"wildcard\": %s, "
           "\"payload_min\": %zu, \"payload_max\": %zu, \"window\": %" PRIu64 ", \"single\": %s, "
           "\"verified\": %s, \"seconds\": %.4f, \"published\": %" PRIu64
           ", \"delivered\": %" PRIu64 ", ",
           options.protocol->name, options.subscribers, options.topics,
           options.wildcard ? "true" : "false", options.payload_min, options.payload_max,
           options.window, options.single ? "true" : "false", options.verify ? "true" : "false",
           seconds, published - before.published, delivered);
    printf("\"total_published\": %" PRIu64 ", \"total_delivered\": %" PRIu64
           ", \"lost\": %" PRIu64 ", \"surplus\": %" PRIu64 ", \"reordered\": %" PRIu64
           ", \"altered\": %" PRIu64 ", \"subscribers_closed\": %d, \"publisher_closed\": %s, ",
           published, total.received, total.lost, total.surplus, total.reordered, total.altered,
           total.closed, total.publisher_closed ? "true" : "false");
    printf("\"deliveries_per_second\": %.1f, \"generator_share\": %.4f, ",
           (double)delivered / seconds, own / seconds);
    print_share("generator_queued", queued / seconds);
    print_share("server_queued", (after.queued - before.server.queued) / seconds);
    if (options.server > 0)
        printf("\"cpu_seconds\": %.2f, \"cpu_user_seconds\": %.2f, \"cpu_system_seconds\": %.2f, "
               "\"cpu_seconds_per_million\": %.6f, \"server_share\": %.4f, "
               "\"rss_before_mb\": %.1f, \"rss_peak_mb\": %.1f",
               user + system, user, system,
               delivered > 0 ? (user + system) * 1e6 / (double)delivered : 0,
               (user + system) / seconds, before.server.rss_mb, peak_mb);
    else
        printf("\"cpu_seconds\": null, \"cpu_user_seconds\": null, \"cpu_system_seconds\": null, "
               "\"cpu_seconds_per_million\": null, \"server_share\": null, "
               "\"rss_before_mb\": null, \"rss_peak_mb\": null");
    if (options.rate > 0)
        print_paced(seconds);
    printf("}\n");
    bool whole = total.lost == 0 && total.surplus == 0 && total.reordered == 0 &&
                 total.altered == 0 && total.closed == 0 && !total.publisher_closed &&
                 paced.foreign == 0 && (options.rate == 0 || published == paced.total);
    return whole ? 0 : 1;
}

/* ---- The command line -------------------------------------------------------------------------------------------- */

#include "loadgen_many.c"

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
    "  --rate R             paced: R messages a second, each due at its time; latency from then\n"
    "  --publishers P       paced: they take turns (1)\n"
    "  --interval S         paced: a series of what happened in each S seconds\n"
    "  --stalled K          paced: the first K subscribers stop reading (0)\n"
    "  --stall FROM:S       paced: FROM seconds into the measured time, for S seconds (1:1)\n"
    "  --stall-buffer BYTES paced: of their sockets (the kernel's own)\n"
    "  --reconnect          paced: a subscriber that is cut off comes back\n"
    "Many publishers, each with a topic of its own (mqtt, nats and redis):\n"
    "  --pairs P            P publishers, each with one subscriber\n"
    "  --fan-in P           P publishers, and one subscriber to all topics, by a wildcard\n"
    "  --rate R             of all publishers together, in turn; without it each has --window\n"
    "                       messages in flight (not delivered or, with QoS 1, not acknowledged)\n"
    "  --qos 1              publish and subscribe with QoS 1; both sides acknowledge (mqtt)\n"
    "  --kept               subscribers have persistent sessions (mqtt)\n"
    "  --away               the same, but away while messages are published: these are done when\n"
    "                       they are acknowledged, and fetched at the end\n"
    "  --leave              the same, and never fetched: it is not known what is there\n"
    "  --sleep              sleep while nothing is to be done, on a machine that others use too\n"
    "Otherwise:\n"
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

static void parse_stall(const char *text)
{
    char from[32];
    const char *colon = strchr(text, ':');
    if (colon == NULL)
        die("--stall: %s is not FROM:SECONDS", text);
    snprintf(from, sizeof from, "%.*s", (int)(colon - text), text);
    options.stall_from = number("stall", from, 0, 3600);
    options.stall_seconds = number("stall", colon + 1, 0, 3600);
}

static void parse_options(int count, char **words)
{
    enum { PROTOCOL, PORT, SUBSCRIBERS, SECONDS, WARMUP, MESSAGES, WINDOW, PAYLOAD, TOPICS,
           WILDCARD, SINGLE, CHUNK, DRAIN, PID, VERIFY, HELP,
           RATE, PUBLISHERS, INTERVAL, STALLED_, STALL, STALL_BUFFER, RECONNECT,
           PAIRS, FAN_IN, QOS, KEPT, AWAY, LEAVE, SLEEP };
    static const struct option known[] = {
        {"protocol", 1, 0, PROTOCOL}, {"port", 1, 0, PORT}, {"subscribers", 1, 0, SUBSCRIBERS},
        {"seconds", 1, 0, SECONDS}, {"warmup", 1, 0, WARMUP}, {"messages", 1, 0, MESSAGES},
        {"window", 1, 0, WINDOW}, {"payload", 1, 0, PAYLOAD}, {"topics", 1, 0, TOPICS},
        {"wildcard", 0, 0, WILDCARD}, {"single", 0, 0, SINGLE}, {"chunk", 1, 0, CHUNK},
        {"drain", 1, 0, DRAIN}, {"pid", 1, 0, PID}, {"verify", 0, 0, VERIFY},
        {"help", 0, 0, HELP}, {"rate", 1, 0, RATE}, {"publishers", 1, 0, PUBLISHERS},
        {"interval", 1, 0, INTERVAL}, {"stalled", 1, 0, STALLED_}, {"stall", 1, 0, STALL},
        {"stall-buffer", 1, 0, STALL_BUFFER}, {"reconnect", 0, 0, RECONNECT},
        {"pairs", 1, 0, PAIRS}, {"fan-in", 1, 0, FAN_IN}, {"qos", 1, 0, QOS}, {"kept", 0, 0, KEPT},
        {"away", 0, 0, AWAY}, {"leave", 0, 0, LEAVE}, {"sleep", 0, 0, SLEEP}, {0, 0, 0, 0},
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
        case RATE: options.rate = number(name, optarg, 0.1, 1e7); break;
        case PUBLISHERS: options.publishers = (int)number(name, optarg, 1, PUBLISHERS_MAX); break;
        case INTERVAL: options.interval = number(name, optarg, 0.001, 3600); break;
        case STALLED_: options.stalled = (int)number(name, optarg, 0, SUBSCRIBERS_MAX); break;
        case STALL: parse_stall(optarg); break;
        case STALL_BUFFER: options.stall_buffer = (int)number(name, optarg, 1, 1e9); break;
        case RECONNECT: options.reconnect = true; break;
        case PAIRS: options.pairs = (int)number(name, optarg, 1, SUBSCRIBERS_MAX); break;
        case FAN_IN: options.fan_in = (int)number(name, optarg, 1, SUBSCRIBERS_MAX); break;
        case QOS: options.qos = (int)number(name, optarg, 0, 1); break;
        case KEPT: options.kept = true; break;
        case AWAY: options.away = options.kept = true; break;
        case LEAVE: options.leave = options.away = options.kept = true; break;
        case SLEEP: options.sleep = true; break;
        case HELP: fputs(usage_text, stdout); exit(0);
        default: fputs(usage_text, stderr); exit(2);
        }
    }
    if (options.protocol == NULL || options.port == 0 || optind != count) {
        fputs(usage_text, stderr);
        exit(2);
    }
    options.many = options.pairs > 0 || options.fan_in > 0;
    if (options.many) {
        check_many();
    } else if (options.qos > 0 || options.kept || options.sleep) {
        die("--qos 1, --kept and --sleep want --pairs or --fan-in");
    }
    if (!options.wildcard && options.pairs == 0 && options.topics > FILTERS_MAX)
        die("--topics: more than %d are subscribed to with --wildcard only", FILTERS_MAX);
    if (options.verify && options.payload_min < STAMP_SIZE)
        die("--verify needs payloads of at least %d bytes, for the sequence number", STAMP_SIZE);
    if (options.rate == 0 && !options.many && (options.publishers > 1 || options.interval > 0 ||
                              options.stalled > 0 || options.reconnect))
        die("--publishers, --interval, --stalled and --reconnect want --rate");
    if (options.rate > 0 && options.payload_min < STAMP_SIZE)
        die("--rate needs payloads of at least %d bytes, for the sequence number", STAMP_SIZE);
    if (options.stalled > options.subscribers)
        die("--stalled: there are %d subscribers", options.subscribers);
    if (options.verify && options.topics % options.publishers != 0)
        die("--verify: order is known within a topic that has one publisher; let --topics be a "
            "multiple of --publishers");
    if (options.server > 0 && server_usage().rss_mb == 0)
        die("--pid: there is no process %d", (int)options.server);
}

int main(int count, char **words)
{
    parse_options(count, words);
    name_topics(options.protocol->separator);
    if (options.many)
        return measure_many();
    build_cycle();
    connect_all();
    return measure();
}
