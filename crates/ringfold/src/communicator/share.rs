//! The links between the ranks of a group: which transport goes where, and its set-up.

use std::sync::Arc;
use std::time::Instant;

use super::connect::Group;
use crate::config::TransportChoice;
use crate::error::{Error, Result};
use crate::transport::Transport;
use crate::transport::local;
use crate::transport::shm::{Segment, Shape, Shm};

/// Tells whether a rank has left in good order.
pub type HasDeparted = Box<dyn Fn() -> bool + Send + Sync>;

/// What connects a rank with the others.
pub struct Links {
    pub transport: Box<dyn Transport>,
    pub name: &'static str,
    pub depart: Option<Box<dyn Fn() + Send + Sync>>,
    /// Ranks whose departure can be seen in shared memory.
    pub departures: Vec<(usize, HasDeparted)>,
}

/// Sets the links up.
pub fn link(group: &Group, local_ranks: &[usize], deadline: Instant) -> Result<Links> {
    let world_size = group.world_ranks.len();
    if world_size == 1 {
        let alone = local::local(1).pop().ok_or(Error::Closed)?;
        return Ok(Links {
            transport: Box::new(alone),
            name: "self",
            depart: None,
            departures: Vec::new(),
        });
    }
    if local_ranks.len() == world_size && group.settings.transport != TransportChoice::Tcp {
        let segment = segment(group, local_ranks, deadline)?;
        let shm = Shm::new(segment.clone(), group.rank);
        let rank = group.rank;
        let depart = Box::new(move || {
            segment
                .departed(rank)
                .store(1, std::sync::atomic::Ordering::Release)
        });
        return Ok(Links {
            transport: Box::new(shm),
            name: "shm",
            depart: Some(depart),
            departures: Vec::new(),
        });
    }
    Err(Error::Unsupported("tcp is not connected yet".into()))
}

fn segment(group: &Group, local_ranks: &[usize], deadline: Instant) -> Result<Arc<Segment>> {
    use std::os::fd::AsRawFd;
    let shape = Shape::new(
        local_ranks.len(),
        group.settings.channels + 1,
        group.settings.shm_bytes,
    );
    let own = local_ranks
        .iter()
        .position(|rank| *rank == group.rank)
        .unwrap_or(0);
    let (segment, fd) = if own == 0 {
        let (segment, fd) = Segment::create(shape)?;
        (Some(segment), Some(fd))
    } else {
        (None, None)
    };
    let path = fd.as_ref().map_or(String::new(), |fd| {
        format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd())
    });
    let paths = group.exchange("memory", path.as_bytes(), deadline)?;
    let segment = match segment {
        Some(segment) => segment,
        None => {
            let path = String::from_utf8_lossy(&paths[local_ranks[0]]).into_owned();
            let file = std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .map_err(|e| Error::system(path, e))?;
            Segment::open(file.into(), shape)?
        }
    };
    segment.populate(own);
    group.exchange("mapped", &[], deadline)?;
    Ok(segment)
}
