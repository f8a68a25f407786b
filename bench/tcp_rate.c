/* Measures how fast two processes exchange bytes over one TCP connection, both directions at once: what no all-reduce of
 * two hosts can beat, because each sends and receives the whole vector at least once. Nothing is added, and nothing is
 * polled but the socket.
 *
 * Usage: tcp_rate PORT BYTES ITERATIONS BUDGET_MS [ADDRESS]   With ADDRESS it connects, otherwise it accepts one peer.
 *
 * Each side alternates between sending and receiving, at most a chunk per system call. Every chunk size that is no larger
 * than the message is tried for an equal part of BUDGET_MS, at least MIN_ITERATIONS and at most ITERATIONS times. The
 * accepting side prints the times of the chunk size with the smallest median: `in`, the first exchange, then every other,
 * in us, each the slower side's. Before each exchange both sides rewrite their input, one store per cache line, and pass a
 * barrier, both untimed. They are bound to different cores, as those of different machines are. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 64
#define MIN_ITERATIONS 3
/* The accepting side may start later than the connecting one. */
#define CONNECT_TRIES 500
#define CONNECT_PAUSE_US 20000

static const size_t CHUNKS_BYTES[] = {16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20};
#define CHUNKS (sizeof CHUNKS_BYTES / sizeof *CHUNKS_BYTES)

static int peer;            /* The connection. */
static char *input, *output; /* `input` is sent, `output` received. */
static size_t bytes;

static void fail(const char *what) {
    fprintf(stderr, "tcp_rate: %s: %s\n", what, errno ? strerror(errno) : "the peer closed the connection");
    exit(1);
}

static double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

/* Binds this process to the first or the last of the cores that it may use. */
static void bind_to_core(int first) {
    cpu_set_t allowed, chosen;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) fail("sched_getaffinity");
    CPU_ZERO(&chosen);
    for (int core = 0; core < CPU_SETSIZE && !(first && CPU_COUNT(&chosen)); core++) {
        if (!CPU_ISSET(core, &allowed)) continue;
        CPU_ZERO(&chosen);
        CPU_SET(core, &chosen);
    }
    if (sched_setaffinity(0, sizeof chosen, &chosen) != 0) fail("sched_setaffinity");
}

static struct sockaddr_in address_of(const char *text, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (text != NULL && inet_pton(AF_INET, text, &address.sin_addr) != 1) {
        fprintf(stderr, "tcp_rate: %s is no IPv4 address\n", text);
        exit(2);
    }
    return address;
}

static int accepted(int port) {
    struct sockaddr_in any = address_of(NULL, port);
    int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&any, sizeof any) != 0 || listen(listener, 1) != 0) fail("listen");
    int connection = accept(listener, NULL, NULL);
    if (connection < 0) fail("accept");
    close(listener);
    return connection;
}

static int connected(const char *text, int port) {
    struct sockaddr_in address = address_of(text, port);
    for (int try = 0; try < CONNECT_TRIES; try++) {
        int connection = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(connection, (struct sockaddr *)&address, sizeof address) == 0) return connection;
        close(connection);
        usleep(CONNECT_PAUSE_US);
    }
    fail("connect");
    return -1;
}

/* Exchanges a value with the other side, which also serves as a barrier. */
static double swapped(double value) {
    double theirs;
    errno = 0;
    if (send(peer, &value, sizeof value, MSG_NOSIGNAL) != sizeof value) fail("send");
    if (recv(peer, &theirs, sizeof theirs, MSG_WAITALL) != sizeof theirs) fail("recv");
    return theirs;
}

/* The bytes that a non-blocking call moved: none where it would have blocked. */
static size_t moved(ssize_t result, const char *what) {
    if (result > 0) return (size_t)result;
    if (result == 0) errno = 0;
    if (result == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) fail(what);
    return 0;
}

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

/* The time of one exchange on this side. */
static double exchange_us(size_t chunk) {
    for (size_t i = 0; i < bytes; i += LINE_BYTES) ((volatile char *)input)[i] = 1;
    swapped(0);
    double start_us = now_us();
    size_t sent = 0, received = 0;
    while (sent < bytes || received < bytes) {
        if (sent < bytes)
            sent += moved(send(peer, input + sent, smaller(chunk, bytes - sent), MSG_DONTWAIT | MSG_NOSIGNAL), "send");
        if (received < bytes)
            received += moved(recv(peer, output + received, smaller(chunk, bytes - received), MSG_DONTWAIT), "recv");
    }
    return now_us() - start_us;
}

static double slower_us(size_t chunk) {
    double own = exchange_us(chunk), theirs = swapped(own);
    return own > theirs ? own : theirs;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *times, int count) {
    double *ordered = malloc(sizeof *ordered * (size_t)count);
    memcpy(ordered, times, sizeof *ordered * (size_t)count);
    qsort(ordered, (size_t)count, sizeof *ordered, by_value);
    double middle = (ordered[(count - 1) / 2] + ordered[count / 2]) / 2;
    free(ordered);
    return middle;
}

/* Iterations that fit into a budget; both sides compute the same from the same times. */
static int iterations_in(double budget_us, double us, int most) {
    double room = budget_us / us;
    if (most <= MIN_ITERATIONS || room >= most) return most;
    return room > MIN_ITERATIONS ? (int)room : MIN_ITERATIONS;
}

int main(int count, char **words) {
    if (count < 5) {
        fprintf(stderr, "usage: tcp_rate PORT BYTES ITERATIONS BUDGET_MS [ADDRESS]\n");
        return 2;
    }
    int accepts = count == 5, most = atoi(words[3]), on = 1, best = 0;
    bind_to_core(accepts);
    peer = accepts ? accepted(atoi(words[1])) : connected(words[5], atoi(words[1]));
    if (setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) fail("TCP_NODELAY");
    bytes = strtoull(words[2], NULL, 10);
    input = calloc(1, bytes + 1), output = calloc(1, bytes + 1);
    double *tried = malloc(sizeof *tried * (size_t)most), *kept = malloc(sizeof *kept * (size_t)most);
    if (input == NULL || output == NULL || tried == NULL || kept == NULL) fail("memory");
    memset(output, 0, bytes + 1); /* No page fault falls into a timed exchange. */
    size_t chunks = 1;
    while (chunks < CHUNKS && CHUNKS_BYTES[chunks] <= bytes) chunks++;
    double first = slower_us(bytes), budget_us = atof(words[4]) * 1e3 / (double)chunks;
    for (size_t chunk = 0; chunk < chunks; chunk++) {
        double begin = slower_us(CHUNKS_BYTES[chunk]); /* Untimed: it grows the socket's buffers. */
        int iterations = iterations_in(budget_us, begin, most);
        for (int i = 0; i < iterations; i++) tried[i] = slower_us(CHUNKS_BYTES[chunk]);
        if (best == 0 || median(tried, iterations) < median(kept, best)) {
            best = iterations;
            memcpy(kept, tried, sizeof *kept * (size_t)iterations);
        }
    }
    if (accepts) {
        printf("in %.3f", first);
        for (int i = 0; i < best; i++) printf(" %.3f", kept[i]);
        printf("\n");
    }
    return 0;
}
