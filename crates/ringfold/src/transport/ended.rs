//! The transport of a closed communicator: it has no resources, and refuses every operation.
//!
//! This transport replaces the one that moved data, so that closing frees sockets and memory while
//! handles of the communicator still exist.

use std::sync::Arc;
use std::time::Duration;

use super::{Head, Post, Posted, Sink, StreamId, Ticket, Time, Transport, Waker};
use crate::error::{Error, Result};
use crate::memory::Region;

/// The transport of a closed communicator.
#[derive(Debug)]
pub struct ClosedTransport;

impl Transport for ClosedTransport {
    fn post_send(&mut self, _: Post, _: Region) -> Result<Posted> {
        Err(Error::Closed)
    }

    fn post_recv(&mut self, _: Post, _: Sink) -> Result<Posted> {
        Err(Error::Closed)
    }

    fn listen(&mut self, _: StreamId, _: bool) -> Result<()> {
        Err(Error::Closed)
    }

    fn head(&mut self, _: StreamId) -> Result<Head> {
        Err(Error::Closed)
    }

    fn poll(&mut self, _: Time, _: &mut Vec<Ticket>) -> Result<()> {
        Err(Error::Closed)
    }

    fn block(&mut self, _: Duration) -> Result<()> {
        Err(Error::Closed)
    }

    fn waker(&self) -> Waker {
        Arc::new(|| ())
    }
}
