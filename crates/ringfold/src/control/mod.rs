//! The control plane: ranks find each other, authenticate, and report faults.
//!
//! Rank 0's process runs a rendezvous [`server`]. Every rank, including rank 0, keeps one
//! connection to the server for the life of the job, read by one monitor thread per process
//! ([`session`]): a star of O(N) connections. The connections carry exchanges (all-gathers of small
//! blobs), fault reports and verdicts, goodbyes, and questions about late ranks and progress. The
//! data path only polls one abort word per communicator ([`Health`]), which the monitor sets.
//!
//! # Invariants
//!
//! * Every connection begins with the mutual handshake of [`auth`]; until the handshake is
//!   complete, about a hundred bytes are read at most.
//! * Everything a peer sends is a claim until checked; lengths are bounded before anything is
//!   allocated.
//! * Every wait has a deadline. No thread and no descriptor outlives the last clone of its
//!   [`Session`].
//! * Leaving cleanly is never a fault. Ending without a goodbye always is.
//!
//! # What it does not do
//!
//! The control plane neither encrypts nor survives the loss of rank 0. If rank 0's process dies,
//! every communicator that has rank 0 fails, and the others continue without abort propagation.
//!
//! The control plane never touches data, and a successful call needs none of its threads.
//! Connections: `auth`, `handshake`, `connect`, `limit`, `cancel`. Joining: `rendezvous`,
//! `listener`, `absence`. Server: `server`, `hub`. A rank's side: `session`, `monitor`, `health`,
//! `standing`, `watch`. Data: `mesh`, `fd`. Encoding: `frame`, `wire`.

pub mod absence;
pub mod address;
pub mod auth;
mod cancel;
pub mod claims;
mod connect;
mod connection;
pub mod fault;
pub mod fd;
pub mod frame;
pub mod handshake;
pub mod health;
pub mod hub;
pub mod launch;
pub mod limit;
pub mod listener;
pub mod mesh;
mod monitor;
pub(crate) mod poll;
mod refusal;
mod rendezvous;
pub mod server;
pub mod session;
pub mod socket;
pub mod standing;
pub(crate) mod watch;
pub mod wire;

pub use address::RendezvousAddress;
pub use auth::Secret;
pub use cancel::Cancel;
pub(crate) use cancel::Forwarding;
pub use health::Health;
pub use launch::Launch;
pub use listener::RendezvousListener;
pub use session::Session;
pub use standing::Standing;

#[cfg(test)]
mod connection_tests;
#[cfg(test)]
mod tests;
