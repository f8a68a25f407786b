//! A transport of which a test alters one operation.

use std::time::Duration;

use crate::error::Result;
use crate::memory::Region;
use crate::transport::{
    EngineWork, Head, Post, Posted, Sink, StreamId, Ticket, Time, Transport, Waker, Windows,
};

/// Another transport, with the alterations of a test.
pub struct Altered {
    inner: Box<dyn Transport>,
    sends: Box<dyn FnMut() -> bool + Send>,
    before_poll: Box<dyn FnMut() + Send>,
}

impl Altered {
    /// Wraps `inner` without an alteration.
    pub fn new(inner: impl Transport + 'static) -> Altered {
        Altered {
            inner: Box::new(inner),
            sends: Box::new(|| true),
            before_poll: Box::new(|| {}),
        }
    }

    /// Drops every send for which `sends` returns false.
    pub fn with_sends(self, sends: impl FnMut() -> bool + Send + 'static) -> Altered {
        Altered {
            sends: Box::new(sends),
            ..self
        }
    }

    /// Calls `f` before every poll.
    pub fn before_poll(self, f: impl FnMut() + Send + 'static) -> Altered {
        Altered {
            before_poll: Box::new(f),
            ..self
        }
    }
}

impl Transport for Altered {
    fn post_send(&mut self, post: Post, payload: Region) -> Result<Posted> {
        match (self.sends)() {
            true => self.inner.post_send(post, payload),
            false => Ok(Posted::Done),
        }
    }

    fn post_recv(&mut self, post: Post, sink: Sink) -> Result<Posted> {
        self.inner.post_recv(post, sink)
    }

    fn post_work(&mut self, ticket: Ticket, work: EngineWork) -> Result<Posted> {
        self.inner.post_work(ticket, work)
    }

    fn listen(&mut self, stream: StreamId, is_wanted: bool) -> Result<()> {
        self.inner.listen(stream, is_wanted)
    }

    fn head(&mut self, stream: StreamId) -> Result<Head> {
        self.inner.head(stream)
    }

    fn poll(&mut self, now: Time, done: &mut Vec<Ticket>) -> Result<()> {
        (self.before_poll)();
        self.inner.poll(now, done)
    }

    fn next_event(&self) -> Option<Time> {
        self.inner.next_event()
    }

    fn windows(&self) -> Option<Windows> {
        self.inner.windows()
    }

    fn is_departure_final(&self, peer: usize) -> bool {
        self.inner.is_departure_final(peer)
    }

    fn block(&mut self, timeout: Duration) -> Result<()> {
        self.inner.block(timeout)
    }

    fn withdraw(&mut self) {
        self.inner.withdraw();
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }
}
