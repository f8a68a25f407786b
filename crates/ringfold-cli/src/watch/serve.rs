//! The counters over HTTP: `ringfold metrics --listen`.
//!
//! As much of HTTP/1.1 as Prometheus, curl and a browser need: one request per connection, GET and
//! HEAD, no body. A thread per client, each with a deadline for the whole of it, and a limit to
//! their number: a client that sends nothing, or takes nothing, keeps others out for seconds at the
//! most, and they are told so.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::jobs::Sample;
use super::metrics::text;
use crate::complain;

/// How long a client may take from beginning to end, and how long its request may be.
const CLIENT: Duration = Duration::from_secs(5);
const REQUEST_BYTES_MAX: u64 = 8 << 10;

/// Clients at one time; Prometheus is one.
const CLIENTS_MAX: usize = 32;

/// How long to wait where no client can be taken, for lack of descriptors for example.
const PAUSE: Duration = Duration::from_millis(100);

/// What a client gets.
struct Answer {
    status: &'static str,
    /// More lines of the head.
    head: &'static str,
    body: String,
}

/// Serves the counters until the process is ended.
pub fn run(address: SocketAddr, peers: bool) -> Result<u8> {
    let listener = TcpListener::bind(address).with_context(|| {
        format!("cannot listen at {address}; choose another address or port with --listen")
    })?;
    complain(&format!(
        "counters are served at http://{}/metrics",
        listener.local_addr()?
    ));
    // Each client has one of its references.
    let clients = Arc::new(());
    for client in listener.incoming() {
        let Ok(stream) = client else {
            thread::sleep(PAUSE);
            continue;
        };
        let mut client = Client {
            stream,
            deadline: Instant::now() + CLIENT,
        };
        if Arc::strong_count(&clients) > CLIENTS_MAX {
            client.refuse();
            continue;
        }
        let place = clients.clone();
        let serve = move || {
            // A client that goes away is no failure of ours.
            let _ = client.serve(peers);
            drop(place);
        };
        // Without another thread, the client finds its connection closed.
        let _ = thread::Builder::new().spawn(serve);
    }
    Ok(0)
}

/// A connection, all of which ends by its deadline.
struct Client {
    stream: TcpStream,
    deadline: Instant,
}

impl Client {
    fn serve(&mut self, peers: bool) -> io::Result<()> {
        let request = self.request()?;
        let (answer, has_body) = answer(&request, peers);
        self.send(&answer, has_body)?;
        self.stream.shutdown(Shutdown::Write)?;
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
        let _ = self.stream.set_nonblocking(true);
        let _ = self.send(&answer, true);
    }

    /// The time that is left.
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(Some(left)),
        }
    }
}

impl Read for Client {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(into)
    }
}

impl Write for Client {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Stands for a request that was not read to its end.
const TOO_LONG: &[u8] = b"\0";

impl Answer {
    fn new(status: &'static str, body: impl Into<String>) -> Answer {
        Answer {
            status,
            head: "",
            body: body.into(),
        }
    }
}

/// The answer to the first line of a request, and whether its body is sent.
fn answer(request: &[u8], peers: bool) -> (Answer, bool) {
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
        Some("/metrics") => Answer::new("200 OK", text(&Sample::take(), peers)),
        Some("/") => Answer::new("200 OK", PLACE),
        _ => Answer::new("404 Not Found", PLACE),
    };
    (answer, method == "GET")
}
