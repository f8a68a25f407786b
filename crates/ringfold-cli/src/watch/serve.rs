//! The counters over HTTP: `ringfold metrics --listen`.
//!
//! As much of HTTP/1.1 as Prometheus, curl and a browser need: one request per connection, GET and
//! HEAD, no body.
//!
//! Clients cannot keep each other out. Each has a thread, and a deadline for the whole of it. If
//! there are too many, the oldest one that is not being answered is cut off for the new one: a
//! client that sends nothing, or too slowly, or stays when it has its answer. The counters are read
//! by one thread at a time, and all clients that asked before get the same text.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ringfold::internals::sync::lock;

use crate::output::complain;

/// How long a client may take from beginning to end, and how long its request may be.
const CLIENT: Duration = Duration::from_secs(5);
const REQUEST_BYTES_MAX: u64 = 8 << 10;

/// Clients at one time; Prometheus is one.
const CLIENTS_MAX: usize = 32;

/// Threads at one time, with those of clients that were cut off while counters were read.
const THREADS_MAX: usize = 4 * CLIENTS_MAX;

/// How long to wait where no client can be taken, for lack of descriptors for example.
const PAUSE: Duration = Duration::from_millis(100);

/// What a client gets.
struct Answer {
    status: &'static str,
    /// More lines of the head.
    head: &'static str,
    body: Arc<str>,
}

/// Serves the counters, which `read` returns, until the process is ended.
pub fn run(address: SocketAddr, read: impl Fn() -> String + Send + Sync + 'static) -> Result<u8> {
    let listener = TcpListener::bind(address).with_context(|| {
        format!("cannot listen at {address}; choose another address or port with --listen")
    })?;
    complain(&format!(
        "counters are served at http://{}/metrics",
        listener.local_addr()?
    ));
    let counters = Arc::new(MetricsText {
        read: Box::new(read),
        last: Mutex::new(None),
    });
    // Their threads have them, and close them.
    let mut clients: Vec<Weak<Connection>> = Vec::new();
    // Each thread has one of its references.
    let threads = Arc::new(());
    for client in listener.incoming() {
        let Ok(stream) = client else {
            thread::sleep(PAUSE);
            continue;
        };
        let connection = Arc::new(Connection {
            stream,
            is_answered: AtomicBool::new(false),
        });
        let mut client = Client {
            connection: connection.clone(),
            arrived: Instant::now(),
        };
        clients.retain(|client| client.strong_count() > 0);
        if Arc::strong_count(&threads) > THREADS_MAX {
            client.refuse();
            continue;
        }
        if clients.len() >= CLIENTS_MAX {
            let is_idle = |client: &Weak<Connection>| {
                let client = client.upgrade();
                client.is_none_or(|client| !client.is_answered())
            };
            let idle = clients.iter().position(is_idle);
            if let Some(client) = clients.remove(idle.unwrap_or(0)).upgrade() {
                let _ = client.stream.shutdown(Shutdown::Both);
            }
        }
        clients.push(Arc::downgrade(&connection));
        let (counters, place) = (counters.clone(), threads.clone());
        let serve = move || {
            // A client that goes away is no failure of ours.
            let _ = client.serve(&counters);
            drop(place);
        };
        // Without another thread, the client finds its connection closed.
        let _ = thread::Builder::new().spawn(serve);
    }
    Ok(0)
}

/// The last text of the counters, for all clients that asked before its reading began.
struct MetricsText {
    read: Box<dyn Fn() -> String + Send + Sync>,
    /// The last text, and when its reading began.
    last: Mutex<Option<(Instant, Arc<str>)>>,
}

impl MetricsText {
    /// The counters at a moment not before `since`. Blocks while another thread reads them.
    fn since(&self, since: Instant) -> Arc<str> {
        let mut last = lock(&self.last);
        if let Some((begun, text)) = &*last
            && *begun >= since
        {
            return text.clone();
        }
        let begun = Instant::now();
        let text: Arc<str> = (self.read)().into();
        *last = Some((begun, text.clone()));
        text
    }
}

/// A connection, which the thread that accepts may cut off.
struct Connection {
    stream: TcpStream,
    /// Whether an answer is being sent.
    is_answered: AtomicBool,
}

impl Connection {
    fn is_answered(&self) -> bool {
        // A hint, as in `serve`: it only chooses who is cut off.
        self.is_answered.load(Ordering::Relaxed)
    }
}

/// A client, which is served until its deadline.
struct Client {
    connection: Arc<Connection>,
    arrived: Instant,
}

impl Client {
    fn serve(&mut self, counters: &MetricsText) -> io::Result<()> {
        let request = self.request()?;
        let is_answered = &self.connection.clone().is_answered;
        is_answered.store(true, Ordering::Relaxed);
        let (answer, has_body) = answer(&request, || counters.since(self.arrived));
        self.send(&answer, has_body)?;
        is_answered.store(false, Ordering::Relaxed);
        self.connection.stream.shutdown(Shutdown::Write)?;
        // What was not read yet would make closing look like a failure to the client.
        io::copy(
            &mut Read::by_ref(self).take(REQUEST_BYTES_MAX),
            &mut io::sink(),
        )?;
        Ok(())
    }

    /// The first line of a request, after all of its head.
    fn request(&mut self) -> io::Result<Vec<u8>> {
        let mut lines = BufReader::new(Read::by_ref(self).take(REQUEST_BYTES_MAX));
        let mut request = Vec::new();
        lines.read_until(b'\n', &mut request)?;
        let mut line = request.clone();
        while !line.trim_ascii().is_empty() {
            line.clear();
            lines.read_until(b'\n', &mut line)?;
        }
        if lines.get_ref().limit() == 0 {
            request.clear();
            request.extend_from_slice(TOO_LONG);
        }
        Ok(request)
    }

    fn send(&mut self, answer: &Answer, has_body: bool) -> io::Result<()> {
        let Answer { status, head, body } = answer;
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
             Content-Length: {}\r\n{head}Connection: close\r\n\r\n",
            body.len()
        );
        self.write_all(head.as_bytes())?;
        if has_body {
            self.write_all(body.as_bytes())?;
        }
        Ok(())
    }

    /// Tells a client that there are too many, without waiting for it.
    fn refuse(&mut self) {
        let answer = Answer::new("503 Service Unavailable", "there are too many clients\n");
        // An empty socket takes as much at once. One that does not is closed.
        let _ = self.connection.stream.set_nonblocking(true);
        let _ = self.send(&answer, true);
    }

    /// The time that is left.
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = CLIENT.saturating_sub(self.arrived.elapsed());
        match left.is_zero() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(Some(left)),
        }
    }
}

impl Read for Client {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut stream = &self.connection.stream;
        stream.set_read_timeout(self.left()?)?;
        stream.read(into)
    }
}

impl Write for Client {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let mut stream = &self.connection.stream;
        stream.set_write_timeout(self.left()?)?;
        stream.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Stands for a request that was not read to its end.
const TOO_LONG: &[u8] = b"\0";

impl Answer {
    fn new(status: &'static str, body: impl Into<Arc<str>>) -> Answer {
        Answer {
            status,
            head: "",
            body: body.into(),
        }
    }
}

/// The answer to the first line of a request, and whether its body is sent.
fn answer(request: &[u8], counters: impl FnOnce() -> Arc<str>) -> (Answer, bool) {
    const PLACE: &str = "the counters are at /metrics\n";
    if request == TOO_LONG {
        let answer = Answer::new("431 Request Header Fields Too Large", "too long\n");
        return (answer, true);
    }
    let line = String::from_utf8_lossy(request);
    let words: Vec<&str> = line.split_whitespace().collect();
    let [method, target, version] = words[..] else {
        return (Answer::new("400 Bad Request", "this is not HTTP/1\n"), true);
    };
    if !version.starts_with("HTTP/1.") {
        let answer = Answer::new("505 HTTP Version Not Supported", "HTTP/1 is served\n");
        return (answer, true);
    }
    if !matches!(method, "GET" | "HEAD") {
        let mut answer = Answer::new("405 Method Not Allowed", "GET and HEAD are served\n");
        answer.head = "Allow: GET, HEAD\r\n";
        return (answer, true);
    }
    let answer = match target.split('?').next() {
        Some("/metrics") => Answer::new("200 OK", counters()),
        Some("/") => Answer::new("200 OK", PLACE),
        _ => Answer::new("404 Not Found", PLACE),
    };
    (answer, method == "GET")
}
